"""What a recipe makes of a graph: a table of rows of the target's nodes for everything it averages
over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple, Protocol

from hopper.graph.schema import GraphSchema
from hopper.hetero.precompute.neighbours import Rows
from hopper.hetero.precompute.stored_graph import StoredGraph, Workspace


class Table(NamedTuple):
    """A table of rows of the target's nodes.

    Attributes
    ----------
    name: of the node type that has them in the new graph.
    relation: name of the relation from it to the target.
    dim: width of a row.
    """

    name: str
    relation: str
    dim: int


class Recipe(Protocol):
    """What is averaged over what."""

    takes_parts: ClassVar[bool]
    """whether the parts of a graph that was divided by relation can be averaged one by one"""

    def tables(self, stored: StoredGraph, widths: Mapping[str, int]) -> list[Table]:
        """The tables that a graph, or a server's part of one, has rows for.

        Parameters
        ----------
        widths: by node type, that of its features or random rows; 0 = it has neither.

        Raises
        ------
        RequestError: a type that is averaged over has no rows, or no rows of the right width; names
            it.
        """

    def own_rows_dim(self, width: int) -> int:
        """The width of the target's own rows in the new graph, given that of its features."""

    def own_rows(self, work: Workspace, target: str) -> Rows:
        """[count, dim]: the target's own rows in the new graph."""

    def fill(self, work: Workspace) -> Iterator[tuple[str, Rows]]:
        """The rows of every table, by its name, in any order."""


def widths_of(schema: GraphSchema, random_dim: int) -> dict[str, int]:
    """By node type, the width of its features, or of random rows in their place."""
    return {name: kind.feature_dim or random_dim for name, kind in schema.node_types.items()}
