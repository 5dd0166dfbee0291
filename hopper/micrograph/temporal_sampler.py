"""Sampling in time: of what a root reads, nothing is later than the root.

A node has other neighbours in the micrograph of a later root. So frontiers hold versions of nodes:
a version is of a node and a root's time, and what is drawn is a pure function of both. Micrographs
of roots with the same time share rows, others do not, and a mini-batch's subgraph is still exactly
the union of its micrographs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import NEIGHBOURS
from cache_server.hop_draw import Drawn, HopDraw, Method
from cache_server.left_out import LeftOut
from hopper.errors import ConfigError, RequestError
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.micrograph.row_tables import HashTable, RowTable
from hopper.micrograph.sample import NeighborSampler, SamplerOptions

Ids = NDArray[np.int64]
Pick = Literal["uniform", "recent"]
_NONE: Final = np.empty(0, np.int64)


class TemporalSampler(NeighborSampler):
    """Draws ``fanouts[l]`` in-neighbours a relation at hop l without replacement, among those that
    are there at the root's time: edges, and their sources, that are not later. Relations without
    times are there always.

    Parameters
    ----------
    pick: "uniform", or the most "recent" ones, ties by position.
    others, and errors: as of :class:`NeighborSampler`.
    """

    reads_times: ClassVar[bool] = True

    def __init__(
        self,
        topologies: Mapping[Relation, Topology],
        original_ids: Mapping[str, Ids],
        target: str,
        fanouts: Sequence[int],
        seed: int,
        *,
        pick: Pick = "uniform",
        **options: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(topologies, original_ids, target, fanouts, seed, **options)
        if pick not in ("uniform", "recent"):
            raise ConfigError(
                f'sampler.kind_options.pick: expected "uniform" or "recent", given {pick!r}'
            )
        self._recent = pick == "recent"
        self._root_times: Mapping[str, Ids] = {}
        self._times = _NONE
        """[t] int64, ascending: all that a root may have"""
        self._lacking: dict[Relation, tuple[LeftOut, LeftOut]] = {}
        """by relation, what was last left out, and the same by place in time"""

    def set_times(self, of_nodes: Mapping[str, Ids], others: Sequence[Ids] = ()) -> None:
        """Tell when roots are.

        Parameters
        ----------
        of_nodes: by node type whose nodes may be roots, [count] int64 by original id.
        others: [n] int64 each, other times that a root may have: of edges whose ends are roots.
        """
        self._root_times = dict(of_nodes)
        self._times = np.unique(np.concatenate([_NONE, *of_nodes.values(), *others]))

    @property
    def version_dtype(self) -> np.dtype[Any]:
        """See :class:`NeighborSampler`."""
        return np.dtype(np.int64)

    def versions(self, node_type: str, roots: Ids) -> Ids:
        """See :class:`NeighborSampler`: a node has a version for each time of a root."""
        stored = self.stored_as.get(node_type, node_type)
        if stored not in self._root_times:
            raise RequestError(f"times of {stored}: expected those of the roots, given none")
        times = self._root_times[stored][self.original_ids[node_type][roots]]
        return self.versions_at(node_type, roots, times)

    def versions_at(self, node_type: str, nodes: Ids, times: Ids | None) -> Ids:
        """See :class:`NeighborSampler`; of times that :meth:`set_times` has told."""
        assert times is not None
        return np.searchsorted(self._times, times) * self._count(node_type) + nodes

    def nodes_of(self, node_type: str, versions: Ids) -> Ids:
        """See :class:`NeighborSampler`."""
        return versions % self._count(node_type)

    def times_of(self, node_type: str, versions: Ids) -> Ids:
        """See :class:`NeighborSampler`."""
        found: Ids = self._times[versions // self._count(node_type)]
        return found

    def row_table(self, node_type: str) -> RowTable:
        """See :class:`NeighborSampler`."""
        return HashTable()

    def source_versions(self, relation: Relation, destinations: Ids, drawn: Drawn) -> Ids:
        """See :class:`NeighborSampler`."""
        firsts = destinations // self._count(relation.dst) * self._count(relation.src)
        found: Ids = np.repeat(firsts, np.diff(drawn[0])) + drawn[1]
        return found

    def how(self, hop: int, relation: Relation, moment: tuple[int, int]) -> HopDraw:
        """See :class:`NeighborSampler`."""
        method: Method = "recent" if self._recent else "temporal"
        return self.drawn_by(method, NEIGHBOURS, hop, relation, moment)

    def lacking(self, relation: Relation, moment: tuple[int, int]) -> LeftOut | None:
        """See :class:`NeighborSampler`."""
        found = super().lacking(relation, moment)
        if found is None:
            return None
        # Worked out once for all hops of an iteration.
        kept = self._lacking.get(relation)
        if kept is None or kept[0] is not found:
            topology = self.topologies[relation]
            kept = found, found.in_time(topology.indptr, topology.by_time)
            self._lacking[relation] = kept
        return kept[1]

    def _count(self, node_type: str) -> int:
        return max(1, self.original_ids[node_type].size)
