"""Sampling in time: a root reads nothing that is later than itself.

A node may have more neighbors for a later root. So frontiers hold versions of nodes, each of a
node and a root's time, and draws are pure functions of both. Micrographs of roots with the same
time share rows, others do not. A mini-batch's subgraph is still exactly the union of its
micrographs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, Unpack

import numpy as np

from cache_server.draws.counter import NEIGHBORS
from cache_server.draws.spec import Drawn, ExcludedEdges, Method, SamplingSpec
from hopper.errors import ConfigError, RequestError
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids, Topology
from hopper.micrograph.frontiers import HashTable, RowTable
from hopper.micrograph.sample import NeighborSampler, SamplerOptions

Pick = Literal["uniform", "recent"]
_NONE: Final = np.empty(0, np.int64)


class TemporalSampler(NeighborSampler):
    """Draws ``fanouts[l]`` in-neighbors a relation at hop l from those that are there in time.

    An edge is there if neither it nor its source is later than the root. Edges of relations without
    times are always there. Draws are without replacement. Parameters and errors not listed are
    those of :class:`NeighborSampler`.

    Parameters
    ----------
    pick: "uniform" draws all with the same probability. "recent" takes the latest ones, ties by
        position.
    """

    reads_times: ClassVar[bool] = True
    version_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int64)

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
        self._method: Method = "recent" if pick == "recent" else "temporal"
        self._root_times: Mapping[str, Ids] = {}
        self._times = _NONE
        """[t] int64, ascending: all times that a root may have"""
        self._excluded: dict[Relation, tuple[ExcludedEdges, ExcludedEdges]] = {}
        """by relation, the edges that were last excluded, and the same with places by time"""

    def set_times(self, of_nodes: Mapping[str, Ids], others: Sequence[Ids] = ()) -> None:
        """Set the times that roots may have: by node type whose nodes may be roots, [count] int64
        by original id, and those of edges whose ends are roots, [n] int64 each."""
        self._root_times = dict(of_nodes)
        self._times = np.unique(np.concatenate([_NONE, *of_nodes.values(), *others]))

    def versions(self, node_type: str, roots: Ids) -> Ids:
        """Return [n] int64: the version of each root at its own time; a RequestError tells that the
        times of these roots were not set."""
        stored = self.names.node_type(node_type)
        if stored not in self._root_times:
            raise RequestError(f"times of {stored}: expected those of the roots, given none")
        times = self._root_times[stored][self.original_ids[node_type][roots]]
        return self.versions_at(node_type, roots, times)

    def versions_at(self, node_type: str, nodes: Ids, times: Ids | None) -> Ids:
        """Return [n] int64: the versions of nodes at times that :meth:`set_times` has set."""
        assert times is not None
        return np.searchsorted(self._times, times) * self._count(node_type) + nodes

    def nodes_of(self, node_type: str, versions: Ids) -> Ids:
        """Return [n] int64: the global ids of versions."""
        return versions % self._count(node_type)

    def times_of(self, node_type: str, versions: Ids) -> Ids:
        """Return [n] int64: the times of versions."""
        return self._times[versions // self._count(node_type)]

    def row_table(self, node_type: str) -> RowTable:
        """Make a hash table, since versions are too many for a dense one."""
        return HashTable()

    def in_versions(self, relation: Relation, destinations: Ids, drawn: Drawn) -> Drawn:
        """Replace the global ids of drawn sources by versions at their destinations' times."""
        offsets, sources, positions = drawn
        firsts = destinations // self._count(relation.dst) * self._count(relation.src)
        return offsets, np.repeat(firsts, np.diff(offsets)) + sources, positions

    def how(self, hop: int, relation: Relation, moment: tuple[int, int]) -> SamplingSpec:
        """Draw in time, as ``pick`` says; see :meth:`NeighborSampler.how`."""
        return self.make_spec(self._method, NEIGHBORS, hop, relation, moment)

    def excluded(self, relation: Relation, moment: tuple[int, int]) -> ExcludedEdges:
        """Return the edges that an iteration may not draw, with places in order of time."""
        excluded = super().excluded(relation, moment)
        # Converted once for all hops of an iteration.
        last = self._excluded.get(relation)
        if last is None or last[0] is not excluded:
            last = excluded, self.lists(relation).in_time(excluded)
            self._excluded[relation] = last
        return last[1]

    def _count(self, node_type: str) -> int:
        return max(1, self.original_ids[node_type].size)
