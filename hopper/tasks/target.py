"""The target that a model predicts, the widths that follow from it, and the two ends of a link."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from hopper.config import Config, Task
from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema, Predicted, Relation, TargetKind

Side = Literal["head", "tail"]
SIDES: Final[tuple[Side, Side]] = ("tail", "head")


class Target(NamedTuple):
    """The target that a model predicts.

    Attributes
    ----------
    predicted: "node" or "edge" for their labels, or "link".
    kind: kind of the labels, or "link".
    width: width of the model's output for a node: the number of classes or values, or the width of
        the rows that a decoder reads.
    classes: number of classes or values; for links, the same as ``width``.
    """

    predicted: Predicted
    kind: TargetKind
    width: int
    classes: int

    @property
    def has_decoder(self) -> bool:
        """Return whether a decoder computes predictions from the rows of two nodes."""
        return self.predicted != "node"


_EXPECTED_GRAPH = {
    "node": "a graph whose target is a node type",
    "edge": "a graph whose target is a relation with labels",
    "link": "a graph that was imported with --target RELATION, of edges without labels",
}


def find_target(config: Config, schema: GraphSchema) -> Target:
    """Find what a configuration predicts in a graph. A :class:`RequestError` says that the graph
    has no such labels or links, and what was expected."""
    asked, predicted = config.task.kind, schema.predicted
    if asked not in ("auto", predicted):
        named = ", ".join(map(str, schema.target_relations)) or f"node type {schema.target!r}"
        what = "edges with labels" if predicted == "edge" else f"{predicted}s"
        raise RequestError(
            f'task.kind: the graph\'s target is {named}, {what}; expected "{predicted}", or '
            f'{_EXPECTED_GRAPH[asked]}; given "{asked}"'
        )
    width, labels = config.task.dim or config.model.hidden, schema.target_labels
    if predicted == "link":
        return Target(predicted, "link", width, width)
    if labels is None:
        raise RequestError(f"{schema.name}: node type {schema.target!r} has no labels")
    if predicted == "node":
        width = labels.classes
    return Target(predicted, labels.kind, width, labels.classes)


def sides_of(task: Task) -> tuple[Side, ...]:
    """Return the ends that negatives replace, in order."""
    return SIDES if task.corrupt == "both" else (task.corrupt,)


def type_at(relation: Relation, side: Side) -> str:
    """Return the node type at an end of a relation's links."""
    return relation.dst if side == "tail" else relation.src
