"""Averages rows along metapaths (SeHGNN, section 4.2: simplified neighbour aggregation).

The row of a root for a metapath ``r1, r2, ..., rk`` is a mean of means. It is the mean over the
root's neighbours under ``r1`` of their own means under ``r2``, and so on. Under ``rk`` it is the
mean of the last type's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from hopper.errors import RequestError
from hopper.graph.schema import Relation
from hopper.hetero.metatree import Metatree, Vertex, make_metatree
from hopper.hetero.precompute.neighbours import Rows, average_neighbours
from hopper.hetero.precompute.stored_graph import StoredGraph, Workspace
from hopper.hetero.precompute.tables import Table

RELATION: Final = "metapath"
"""The name of the relations from tables to the target."""

Path = tuple[Relation, ...]


@dataclass(frozen=True)
class MetapathTables:
    """Makes a table for every metapath of up to ``layers`` hops.

    Attributes
    ----------
    layers: the most hops, at least 1.
    metapaths: lists of relations from the target outwards. Each list and each of its beginnings is
        a metapath; none = all metapaths.
    """

    takes_parts: ClassVar[bool] = True

    layers: int = 2
    metapaths: Sequence[Sequence[str]] = ()

    def tables(self, stored: StoredGraph, widths: Mapping[str, int]) -> list[Table]:
        """Return a table for each metapath.

        Raises
        ------
        RequestError: a metapath ends in a type without rows, or two have the same name.
        """
        paths = self._paths(stored)
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
        return tables

    def own_rows_dim(self, width: int) -> int:
        """Return the width of the target's features, which stays as it is."""
        return width

    def own_rows(self, work: Workspace, target: str) -> Rows:
        """Return the target's features as they are."""
        return work.rows(target)

    def fill(self, work: Workspace) -> Iterator[tuple[str, Rows]]:
        """Yield the rows of every table. Common ends of metapaths are averaged once."""
        ends: dict[Path, Rows] = {}
        for path in self._paths(work.stored):
            yield metapath_name(path), _average(work, path, ends)

    def _paths(self, stored: StoredGraph) -> list[Path]:
        """Return the metapaths that begin with a relation of ``stored``, in canonical order."""
        target = stored.schema.target_type()
        tree = make_metatree(stored.schema, target, self.layers, self.metapaths)
        roots = tree.roots if stored.roots is None else stored.roots
        paths = _paths_from(tree, tree.root, self.layers)
        return sorted(path for path in paths if path[0] in roots)


def metapath_name(path: Path) -> str:
    """Return a metapath's name, which is also the name of its table.

    It lists every relation and its source type, from the target outwards.
    """
    return ".".join(f"{relation.rel}.{relation.src}" for relation in path)


def _paths_from(tree: Metatree, vertex: Vertex, hops: int) -> Iterator[Path]:
    for relation in tree.children[vertex] if hops else ():
        yield (relation,)
        if hops > 1:
            below = Vertex(relation.src, vertex.depth + 1)
            yield from ((relation, *path) for path in _paths_from(tree, below, hops - 1))


def _average(work: Workspace, path: Path, ends: dict[Path, Rows]) -> Rows:
    """Average rows along a metapath, for the destinations of its first relation.

    Parameters
    ----------
    ends: the averages along ends of metapaths. This function reads them and adds to them.

    Returns
    -------
    [count, dim]
    """
    first, end = path[0], path[1:]
    if end and end not in ends:
        ends[end] = _average(work, end, ends)
    below = ends[end] if end else work.rows(first.src)
    out = work.new(first.dst, below.shape[1])
    average_neighbours([work.stored.topology(first)], [below], out)
    return out
