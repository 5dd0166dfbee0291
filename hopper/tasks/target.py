"""What a model's numbers mean, whatever is predicted."""

from __future__ import annotations

from typing import NamedTuple

from hopper.config import Config
from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema, TargetKind


class Target(NamedTuple):
    """What is predicted.

    Attributes
    ----------
    kind: of the labels, or "link".
    width: how many numbers the model makes of a node: classes or values, or what links are
        compared by.
    """

    kind: TargetKind
    width: int


def find_target(config: Config, schema: GraphSchema) -> Target:
    """What a configuration predicts of a graph.

    Raises
    ------
    RequestError: the graph has no labels, or no links, to learn from; names what was expected.
    """
    kind, target = config.task.kind, schema.target_type()
    if kind == "node" and schema.target_relations:
        raise RequestError(
            f"task.kind: the graph's target is {', '.join(map(str, schema.target_relations))}; "
            'expected "link", or a graph whose target is a node type; given "node"'
        )
    if kind == "link" and not schema.target_relations:
        raise RequestError(
            f'task.kind: the graph\'s target is node type {target!r}; expected "node", or a graph '
            'that was imported with --target RELATION; given "link"'
        )
    if schema.target_relations:
        return Target("link", config.task.dim or config.model.hidden)
    if target not in schema.labels:
        raise RequestError(f"{schema.name}: node type {target!r} has no labels")
    labels = schema.labels[target]
    return Target(labels.kind, labels.classes)
