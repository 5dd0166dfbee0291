"""Rows averaged along metapaths (SeHGNN, section 4.2: simplified neighbour aggregation).

The row of a metapath ``r1, r2, ..., rk`` at a root is the mean over its neighbours under ``r1`` of
their means under ``r2``, and so on to the rows of the last type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from hopper.errors import RequestError
from hopper.graph.schema import Relation
from hopper.hetero.metagraph import make_metagraph
from hopper.hetero.metatree import Metatree, Vertex, make_metatree
from hopper.hetero.precompute.neighbours import Rows, average_neighbours
from hopper.hetero.precompute.stored_graph import StoredGraph, Workspace
from hopper.hetero.precompute.tables import Table

RELATION: Final = "metapath"
"""name of the relations from tables to the target"""

Path = tuple[Relation, ...]


@dataclass(frozen=True)
class MetapathTables:
    """A table for every metapath of up to so many hops.

    Attributes
    ----------
    layers: hops, at least 1.
    metapaths: those that are followed, each a list of relations from the target outwards, with all
        that they begin with; none = every relation.
    """

    takes_parts: ClassVar[bool] = True

    layers: int = 2
    metapaths: Sequence[Sequence[str]] = ()

    def tables(self, stored: StoredGraph, widths: Mapping[str, int]) -> list[Table]:
        """See :class:`Recipe`: one for each metapath."""
        paths = self._paths(stored)
        for path in paths:
            if not widths[path[-1].src]:
                raise RequestError(
                    f"--random-dim: node type {path[-1].src!r}, which metapath {name_of(path)} "
                    "ends in, has no features; expected the width of random rows"
                )
        tables = [Table(name_of(path), RELATION, widths[path[-1].src]) for path in paths]
        if len({table.name for table in tables}) < len(tables):
            names = ", ".join(table.name for table in tables)
            raise RequestError(f"metapaths: expected names that tell them apart, found {names}")
        return tables

    def own_rows_dim(self, width: int) -> int:
        """See :class:`Recipe`: as wide as they are."""
        return width

    def own_rows(self, work: Workspace, target: str) -> Rows:
        """See :class:`Recipe`: as they are."""
        return work.rows(target)

    def fill(self, work: Workspace) -> Iterator[tuple[str, Rows]]:
        """See :class:`Recipe`; what paths end in is averaged once for all of them."""
        ends: dict[Path, Rows] = {}
        for path in self._paths(work.stored):
            yield name_of(path), _average(work, path, ends)

    def _paths(self, stored: StoredGraph) -> list[Path]:
        """All metapaths that begin with a relation that is averaged here, in canonical order."""
        metagraph, target = make_metagraph(stored.schema), stored.schema.target_type()
        tree = make_metatree(metagraph, target, self.layers, self.metapaths)
        roots = tree.roots if stored.roots is None else stored.roots
        paths = _paths_from(tree, tree.root, self.layers)
        return sorted(path for path in paths if path[0] in roots)


def name_of(path: Path) -> str:
    """A metapath's name, and that of the type that has its rows: every relation and the type it
    comes from, from the target outwards."""
    return ".".join(f"{relation.rel}.{relation.src}" for relation in path)


def _paths_from(tree: Metatree, vertex: Vertex, hops: int) -> Iterator[Path]:
    for relation in tree.children[vertex] if hops else ():
        yield (relation,)
        if hops > 1:
            below = Vertex(relation.src, vertex.depth + 1)
            yield from ((relation, *rest) for rest in _paths_from(tree, below, hops - 1))


def _average(work: Workspace, path: Path, ends: dict[Path, Rows]) -> Rows:
    """[count, dim]: the rows of a metapath at the nodes that its first relation leads to.

    Parameters
    ----------
    ends: what has been averaged along the ends of other paths, to which this path's are added.
    """
    first, rest = path[0], path[1:]
    if rest and rest not in ends:
        ends[rest] = _average(work, rest, ends)
    below = ends[rest] if rest else work.rows(first.src)
    out = work.new(first.dst, below.shape[1])
    average_neighbours([work.stored.topology(first)], [below], out)
    return out
