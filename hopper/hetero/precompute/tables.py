"""The interface of recipes, which make tables of averaged rows for the target's nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple, Protocol

from hopper.graph.schema import GraphSchema
from hopper.hetero.precompute.neighbours import Rows
from hopper.hetero.precompute.stored_graph import StoredGraph, Workspace


class Table(NamedTuple):
    """A table of rows for the target's nodes.

    Attributes
    ----------
    name: the name of the table's node type in the new graph.
    relation: the name of the relation from the table to the target.
    dim: the width of a row.
    source: the node type whose rows are averaged; "" = several.
    """

    name: str
    relation: str
    dim: int
    source: str = ""


class Recipe(Protocol):
    """Decides which rows are averaged over which relations."""

    takes_parts: ClassVar[bool]
    """whether the servers' parts of a graph divided by relation can be averaged one by one"""

    def tables(self, stored: StoredGraph, widths: Mapping[str, int]) -> list[Table]:
        """Return the tables that a graph, or a server's part of one, has rows for.

        Parameters
        ----------
        widths: by node type, the width of its features or random rows; 0 = it has neither.

        Raises
        ------
        RequestError: a type that is averaged has no rows, or rows of a wrong width. The message
            names the type.
        """

    def own_rows_dim(self, width: int) -> int:
        """Return the width of the target's own rows in the new graph.

        Parameters
        ----------
        width: the width of the target's features.
        """

    def own_rows(self, work: Workspace, target: str) -> Rows:
        """Return the target's own rows [count, dim] in the new graph."""

    def fill(self, work: Workspace) -> Iterator[tuple[str, Rows]]:
        """Yield the name and the rows of every table, in any order."""


def row_widths(schema: GraphSchema, random_dim: int) -> dict[str, int]:
    """Return the width of each node type's features, or of the random rows in their place."""
    return {name: kind.feature_dim or random_dim for name, kind in schema.node_types.items()}
