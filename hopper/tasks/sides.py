"""The two ends of a link."""

from __future__ import annotations

from typing import Final, Literal

from hopper.config import Task
from hopper.graph.schema import Relation

Side = Literal["head", "tail"]
SIDES: Final[tuple[Side, Side]] = ("tail", "head")


def sides_of(task: Task) -> tuple[Side, ...]:
    """Return the ends that negatives replace, in order."""
    return SIDES if task.corrupt == "both" else (task.corrupt,)


def type_at(relation: Relation, side: Side) -> str:
    """Return the node type at an end of a relation's links."""
    return relation.dst if side == "tail" else relation.src
