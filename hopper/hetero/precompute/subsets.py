"""Averages rows over subsets of the relations, hop by hop (NARS, section 3.1).

For a subset, a node's row at hop l is the mean of its neighbours' rows at hop l - 1, over all
relations of the subset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema, Relation
from hopper.hetero.metatree import make_metatree
from hopper.hetero.precompute.neighbours import Rows, average_neighbours
from hopper.hetero.precompute.stored_graph import StoredGraph, Workspace
from hopper.hetero.precompute.tables import Table

_DRAWS_PER_SUBSET: Final = 200
_BLOCK_ROWS: Final = 1 << 16


@dataclass(frozen=True)
class SubsetTables:
    """Makes a table for every subset and hop.

    Attributes
    ----------
    layers: the number of hops, at least 1.
    subsets: the number of subsets to draw. Each has a relation into the target, and all differ.
    dim: the width of all rows. A random matrix for each type projects rows of other widths; 0 = all
        types must have the same width.
    seed: the seed of subsets and matrices.
    """

    takes_parts: ClassVar[bool] = False

    layers: int = 2
    subsets: int = 8
    dim: int = 0
    seed: int = 0

    def tables(self, stored: StoredGraph, widths: Mapping[str, int]) -> list[Table]:
        """Return a table for each subset and hop.

        Raises
        ------
        RequestError: a type has no rows, or rows of another width without ``dim``.
        """
        schema = stored.schema
        sources = (relation.src for relation in self._relations(schema))
        reached = {schema.target_type(), *sources}
        bare = sorted(node_type for node_type in reached if not widths[node_type])
        if bare:
            raise RequestError(
                f"--random-dim: node types without features: {', '.join(bare)}; expected the width "
                "of random rows"
            )
        if not self.dim and len({widths[node_type] for node_type in reached}) > 1:
            widths_text = ", ".join(f"{name} {widths[name]}" for name in sorted(reached))
            raise RequestError(
                f"--dim: rows of several types are averaged; expected the width to project all to, "
                f"since their widths are {widths_text}"
            )
        dim = self.own_rows_dim(widths[schema.target_type()])
        count = len(self._draw(schema))
        return [
            Table(_name(subset, hop), f"hop{hop}", dim)
            for subset in range(count)
            for hop in range(1, self.layers + 1)
        ]

    def own_rows_dim(self, width: int) -> int:
        """Return the width of all rows."""
        return self.dim or width

    def own_rows(self, work: Workspace, target: str) -> Rows:
        """Return the target's rows [count, dim] at hop 0."""
        return self._first(work, target)

    def fill(self, work: Workspace) -> Iterator[tuple[str, Rows]]:
        """Yield the rows of every table, subset by subset."""
        schema = work.stored.schema
        target = schema.target_type()
        reached = {target, *(relation.src for relation in self._relations(schema))}
        first = {node_type: self._first(work, node_type) for node_type in sorted(reached)}
        for number, subset in enumerate(self._draw(schema)):
            rows = first
            for hop in range(1, self.layers + 1):
                rows = self._next_hop(work, subset, rows)
                yield _name(number, hop), rows[target]

    def _next_hop(
        self, work: Workspace, subset: tuple[Relation, ...], rows: Mapping[str, Rows]
    ) -> dict[str, Rows]:
        """Average rows for the next hop, by type; zero if no relation leads into the type."""
        averages = {}
        for node_type, before in rows.items():
            into = [relation for relation in subset if relation.dst == node_type]
            averages[node_type] = work.new(node_type, before.shape[1])
            if into:
                topologies = [work.stored.topology(relation) for relation in into]
                sources = [rows[relation.src] for relation in into]
                average_neighbours(topologies, sources, averages[node_type])
        return averages

    def _first(self, work: Workspace, node_type: str) -> Rows:
        """Return a type's rows [count, dim] at hop 0."""
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
        """Return the relations that hops from the target read, in canonical order."""
        tree = make_metatree(schema, schema.target_type(), self.layers)
        return tree.relations_of(tree.roots)

    def _draw(self, schema: GraphSchema) -> list[tuple[Relation, ...]]:
        """Draw the subsets, and return them in this order.

        Raises
        ------
        RequestError: there are fewer subsets than asked for.
        """
        relations, target = self._relations(schema), schema.target_type()
        generator = np.random.default_rng([self.seed])
        subsets: dict[tuple[Relation, ...], None] = {}
        for _ in range(_DRAWS_PER_SUBSET * self.subsets):
            chosen = generator.random(len(relations)) < 0.5
            subset = tuple(r for r, is_chosen in zip(relations, chosen, strict=True) if is_chosen)
            if any(relation.dst == target for relation in subset):
                subsets.setdefault(subset)
            if len(subsets) == self.subsets:
                return list(subsets)
        raise RequestError(
            f"--subsets: {len(relations)} relations have about {len(subsets)} subsets with one "
            f"into {target}; expected at most that many, given {self.subsets}"
        )


def _name(subset: int, hop: int) -> str:
    return f"subset{subset}.hop{hop}"
