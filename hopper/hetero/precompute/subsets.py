"""Averages rows over subsets of the relations, hop by hop (NARS, section 3.1).

For a subset, a node's row at hop l is the mean of its neighbours' rows at hop l - 1, over all
relations of the subset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema, Relation
from hopper.hetero.metatree import make_metatree
from hopper.hetero.precompute.averages import Rows, Workspace, average_neighbours
from hopper.hetero.precompute.write_tables import Table

_DRAWS_PER_SUBSET: Final = 200
_BLOCK_ROWS: Final = 1 << 16


@dataclass(frozen=True)
class SubsetTables:
    """Makes a table for every subset and hop."""

    layers: int = 2
    """the number of hops, at least 1"""
    subsets: int = 8
    """the number of subsets to draw. Each has a relation into the target, and all differ."""
    dim: int = 0
    """the width of all rows. A random matrix for each type projects rows of other widths; 0 = all
    types must have the same width."""
    seed: int = 0
    """of subsets and matrices"""

    def tables(self, schema: GraphSchema, widths: Mapping[str, int]) -> list[Table]:
        """Return a table for each subset and hop, and one of the target's rows at hop 0. A
        :class:`RequestError` says that a type has no rows, or rows of another width without
        ``dim``, or that there are fewer subsets."""
        reached, target = self._reached(schema), schema.target_type()
        bare = [node_type for node_type in reached if not widths[node_type]]
        if bare:
            raise RequestError(
                f"--random-dim: node types without features: {', '.join(bare)}; expected the width "
                "of random rows"
            )
        if not self.dim and len({widths[node_type] for node_type in reached}) > 1:
            widths_text = ", ".join(f"{name} {widths[name]}" for name in reached)
            raise RequestError(
                f"--dim: rows of several types are averaged; expected the width to project all to, "
                f"since their widths are {widths_text}"
            )
        dim = self.dim or widths[target]
        return [Table(target, "", dim, target)] + [
            Table(_name(subset, hop), f"hop{hop}", dim)
            for subset in range(len(self._draw(schema)))
            for hop in range(1, self.layers + 1)
        ]

    def fill(self, work: Workspace) -> Iterator[tuple[str, Rows]]:
        """Yield the rows of every table, subset by subset."""
        schema = work.graph.schema
        target = schema.target_type()
        first = {node_type: self._first(work, node_type) for node_type in self._reached(schema)}
        yield target, first[target]
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
                topologies = [work.graph.topology(relation) for relation in into]
                sources = [rows[relation.src] for relation in into]
                average_neighbours(topologies, sources, averages[node_type])
        return averages

    def _first(self, work: Workspace, node_type: str) -> Rows:
        """Return a type's rows [count, dim] at hop 0."""
        rows = work.rows(node_type)
        if self.dim in (0, rows.shape[1]):
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

    def _reached(self, schema: GraphSchema) -> list[str]:
        """Return the node types whose rows are averaged, the target among them."""
        return sorted({schema.target_type(), *(name.src for name in self._relations(schema))})

    def _draw(self, schema: GraphSchema) -> list[tuple[Relation, ...]]:
        """Draw the subsets, and return them in this order."""
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
