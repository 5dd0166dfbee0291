"""The interface of recipes, which make tables of averaged rows for the target's nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from hopper.graph.schema import GraphSchema
from hopper.hetero.precompute.neighbours import Rows
from hopper.hetero.precompute.workspace import Workspace


class Table(NamedTuple):
    """A table of rows for the target's nodes."""

    name: str
    """of the table's node type in the new graph; the target's, if the rows are its own"""
    relation: str
    """the name of the relation from the table to the target"""
    dim: int
    """the width of a row"""
    source: str = ""
    """the node type whose rows are averaged; "" = several"""


class Recipe(Protocol):
    """Decides which rows are averaged over which relations."""

    def tables(self, schema: GraphSchema, widths: Mapping[str, int]) -> list[Table]:
        """Return the tables that are made of a graph, that of the target's own rows first.
        ``widths`` are those of each type's features or random rows, 0 = it has neither. A
        :class:`RequestError` names a type that has no rows, or rows of a wrong width."""

    def fill(self, work: Workspace) -> Iterator[tuple[str, Rows]]:
        """Yield the name and the rows of every table, in any order."""
