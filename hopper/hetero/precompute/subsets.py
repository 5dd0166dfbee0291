"""Rows averaged over subsets of the relations, hop by hop (NARS, section 3.1).

For a subset, a node's row at hop l is the mean over all of its neighbours under the subset's
relations of their rows at hop l - 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema, Relation
from hopper.hetero.metagraph import make_metagraph
from hopper.hetero.metatree import make_metatree
from hopper.hetero.precompute.neighbours import Rows, average_neighbours
from hopper.hetero.precompute.stored_graph import StoredGraph, Workspace
from hopper.hetero.precompute.tables import Table

_DRAWS_PER_SUBSET: Final = 200
_BLOCK_ROWS: Final = 1 << 16


@dataclass(frozen=True)
class SubsetTables:
    """A table for every subset and hop.

    Attributes
    ----------
    layers: hops, at least 1.
    subsets: how many are drawn; each has a relation into the target at least, and no two are the
        same.
    dim: the width that all rows are brought to, where types have other widths, by a random matrix
        for each type; 0 = all are as wide as each other.
    seed: of subsets and matrices.
    """

    takes_parts: ClassVar[bool] = False

    layers: int = 2
    subsets: int = 8
    dim: int = 0
    seed: int = 0

    def tables(self, stored: StoredGraph, widths: Mapping[str, int]) -> list[Table]:
        """See :class:`Recipe`: one for each subset and hop."""
        schema = stored.schema
        reached = {schema.target_type(), *(each.src for each in self._relations(schema))}
        bare = sorted(node_type for node_type in reached if not widths[node_type])
        if bare:
            raise RequestError(
                f"--random-dim: node types without features: {', '.join(bare)}; expected the width "
                "of random rows"
            )
        if not self.dim and len({widths[node_type] for node_type in reached}) > 1:
            told = ", ".join(f"{each} {widths[each]}" for each in sorted(reached))
            raise RequestError(
                f"--dim: rows of several types are averaged, whose widths are {told}; expected the "
                "width that all are brought to"
            )
        dim = self.own_rows_dim(widths[schema.target_type()])
        count = len(self._draw(schema))
        return [
            Table(_name(subset, hop), f"hop{hop}", dim)
            for subset in range(count)
            for hop in range(1, self.layers + 1)
        ]

    def own_rows_dim(self, width: int) -> int:
        """See :class:`Recipe`."""
        return self.dim or width

    def own_rows(self, work: Workspace, target: str) -> Rows:
        """See :class:`Recipe`."""
        return self._first(work, target)

    def fill(self, work: Workspace) -> Iterator[tuple[str, Rows]]:
        """See :class:`Recipe`."""
        schema = work.stored.schema
        target = schema.target_type()
        reached = {target, *(each.src for each in self._relations(schema))}
        first = {node_type: self._first(work, node_type) for node_type in sorted(reached)}
        for number, subset in enumerate(self._draw(schema)):
            rows = first
            for hop in range(1, self.layers + 1):
                rows = self._next_hop(work, subset, rows)
                yield _name(number, hop), rows[target]

    def _next_hop(
        self, work: Workspace, subset: tuple[Relation, ...], rows: Mapping[str, Rows]
    ) -> dict[str, Rows]:
        """By type, the rows of the next hop; zero where the subset has no relation into a type."""
        found = {}
        for node_type, before in rows.items():
            into = [each for each in subset if each.dst == node_type]
            found[node_type] = work.new(node_type, before.shape[1])
            if into:
                topologies = [work.stored.topology(each) for each in into]
                sources = [rows[each.src] for each in into]
                average_neighbours(topologies, sources, found[node_type])
        return found

    def _first(self, work: Workspace, node_type: str) -> Rows:
        """[count, dim]: a type's rows at hop 0."""
        rows = work.rows(node_type)
        if rows.shape[1] == self.own_rows_dim(rows.shape[1]):
            return rows
        generator = np.random.default_rng([self.seed, *node_type.encode()])
        bound = (3 / rows.shape[1]) ** 0.5
        matrix = generator.uniform(-bound, bound, (rows.shape[1], self.dim)).astype(np.float32)
        out = work.new(node_type, self.dim)
        for start in range(0, len(rows), _BLOCK_ROWS):
            out[start : start + _BLOCK_ROWS] = rows[start : start + _BLOCK_ROWS] @ matrix
        return out

    def _relations(self, schema: GraphSchema) -> list[Relation]:
        """Those that so many hops from the target read, in canonical order."""
        tree = make_metatree(make_metagraph(schema), schema.target_type(), self.layers)
        return tree.relations_of(tree.roots)

    def _draw(self, schema: GraphSchema) -> list[tuple[Relation, ...]]:
        """The subsets, in the order in which they were drawn.

        Raises
        ------
        RequestError: there are not so many.
        """
        relations, target = self._relations(schema), schema.target_type()
        generator = np.random.default_rng([self.seed])
        found: dict[tuple[Relation, ...], None] = {}
        for _ in range(_DRAWS_PER_SUBSET * self.subsets):
            chosen = generator.random(len(relations)) < 0.5
            subset = tuple(each for each, is_in in zip(relations, chosen, strict=True) if is_in)
            if any(each.dst == target for each in subset):
                found.setdefault(subset)
            if len(found) == self.subsets:
                return list(found)
        raise RequestError(
            f"--subsets: {len(relations)} relations have {len(found)} subsets with one into "
            f"{target}, or few more; expected fewer than the {self.subsets} that were asked for"
        )


def _name(subset: int, hop: int) -> str:
    return f"subset{subset}.hop{hop}"
