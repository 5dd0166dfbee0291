"""Averages rows along metapaths (SeHGNN, section 4.2: simplified neighbour aggregation).

The row of a root for a metapath ``r1, r2, ..., rk`` is a mean of means. It is the mean over the
root's neighbours under ``r1`` of their own means under ``r2``, and so on. Under ``rk`` it is the
mean of the last type's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema, Relation
from hopper.hetero.metatree import Metatree, Vertex, make_metatree
from hopper.hetero.precompute.averages import Rows, Workspace, average_neighbours
from hopper.hetero.precompute.write_tables import Table

RELATION: Final = "metapath"
"""The name of the relations from tables to the target."""

Path = tuple[Relation, ...]


@dataclass(frozen=True)
class MetapathTables:
    """Makes a table for every metapath of up to ``layers`` hops, one at least.

    ``metapaths`` are lists of relations from the target outwards. Each list and each of its
    beginnings is a metapath; none = all metapaths.
    """

    layers: int = 2
    metapaths: Sequence[Sequence[str]] = ()

    def tables(self, schema: GraphSchema, widths: Mapping[str, int]) -> list[Table]:
        """Return a table for each metapath, and one of the target's features as they are. A
        :class:`RequestError` says that a metapath ends in a type without rows, or that two have the
        same name."""
        paths, target = self._paths(schema), schema.target_type()
        for path in paths:
            if not widths[path[-1].src]:
                raise RequestError(
                    f"--random-dim: node type {path[-1].src!r}, which metapath "
                    f"{metapath_name(path)} ends in, has no features; expected the width of random "
                    "rows"
                )
        tables = [
            Table(metapath_name(path), RELATION, widths[path[-1].src], path[-1].src)
            for path in paths
        ]
        if len({table.name for table in tables}) < len(tables):
            names = ", ".join(table.name for table in tables)
            raise RequestError(f"metapaths: expected different names, found {names}")
        return [Table(target, "", widths[target], target), *tables]

    def fill(self, work: Workspace) -> Iterator[tuple[str, Rows]]:
        """Yield the rows of every table. Common ends of metapaths are averaged once."""
        ends: dict[Path, Rows] = {}
        target = work.graph.schema.target_type()
        yield target, work.rows(target)
        for path in self._paths(work.graph.schema):
            yield metapath_name(path), _average(work, path, ends)

    def _paths(self, schema: GraphSchema) -> list[Path]:
        """Return the metapaths in canonical order."""
        tree = make_metatree(schema, schema.target_type(), self.layers, self.metapaths)
        return sorted(_paths_from(tree, tree.root, self.layers))


def metapath_name(path: Path) -> str:
    """Return a metapath's name, which is also that of its table: every relation and its source
    type, from the target outwards."""
    return ".".join(f"{relation.rel}.{relation.src}" for relation in path)


def _paths_from(tree: Metatree, vertex: Vertex, hops: int) -> Iterator[Path]:
    for relation in tree.children[vertex] if hops else ():
        yield (relation,)
        if hops > 1:
            below = Vertex(relation.src, vertex.depth + 1)
            yield from ((relation, *path) for path in _paths_from(tree, below, hops - 1))


def _average(work: Workspace, path: Path, ends: dict[Path, Rows]) -> Rows:
    """Return the averages [count, dim] along a metapath, of the destinations of its first relation.
    Those along ends of metapaths are read from ``ends``, and added to them."""
    first, end = path[0], path[1:]
    if end and end not in ends:
        ends[end] = _average(work, end, ends)
    below = ends[end] if end else work.rows(first.src)
    out = work.new(first.dst, below.shape[1])
    average_neighbours([work.graph.topology(first)], [below], out)
    return out
