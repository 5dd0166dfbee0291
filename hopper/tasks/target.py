"""What a model's numbers mean, whatever is predicted."""

from __future__ import annotations

from typing import NamedTuple

from hopper.config import Config
from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema, Predicted, TargetKind


class Target(NamedTuple):
    """What is predicted.

    Attributes
    ----------
    predicted: labels of nodes, labels of edges, or links.
    kind: of the labels, or "link".
    width: how many numbers the model makes of a node: classes or values, or what edges are told by.
    classes: how many there are, or values; of links, the same as ``width``.
    """

    predicted: Predicted
    kind: TargetKind
    width: int
    classes: int

    @property
    def has_decoder(self) -> bool:
        """Whether a decoder makes what is predicted of the rows of two nodes."""
        return self.predicted != "node"


_WANTED = {
    "node": "a graph whose target is a node type",
    "edge": "a graph whose target is a relation with labels",
    "link": "a graph that was imported with --target RELATION, of edges without labels",
}


def find_target(config: Config, schema: GraphSchema) -> Target:
    """What a configuration predicts of a graph.

    Raises
    ------
    RequestError: the graph has no labels, or no links, to learn from; names what was expected.
    """
    asked, predicted = config.task.kind, schema.predicted
    if asked not in ("auto", predicted):
        named = ", ".join(map(str, schema.target_relations)) or f"node type {schema.target!r}"
        what = "edges with labels" if predicted == "edge" else f"{predicted}s"
        raise RequestError(
            f'task.kind: the graph\'s target is {named}, {what}; expected "{predicted}", or '
            f'{_WANTED[asked]}; given "{asked}"'
        )
    width, labels = config.task.dim or config.model.hidden, schema.target_labels
    if predicted == "link":
        return Target(predicted, "link", width, width)
    if labels is None:
        raise RequestError(f"{schema.name}: node type {schema.target!r} has no labels")
    if predicted == "node":
        width = labels.classes
    return Target(predicted, labels.kind, width, labels.classes)
