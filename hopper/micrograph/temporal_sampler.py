"""Sampling in time: of what a root reads, nothing is later than the root.

A node has other neighbours in the micrograph of a later root. So rows of frontiers are pairs of a
node and a root's time, and what is drawn is a pure function of both: micrographs of roots with the
same time share rows, others do not, and a mini-batch's subgraph is still exactly the union of its
micrographs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import NEIGHBOURS
from hopper.errors import ConfigError, RequestError
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.kernel_threads import threads_for
from hopper.micrograph.sample import NeighborSampler, Roots, SamplerOptions
from hopper.micrograph.subgraph import HopEdges, Subgraph
from hopper.micrograph.timed_rows import TimedRows, draw_until

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

    Attributes
    ----------
    root_times: by node type, [count] int64 by original id, the times of nodes that may be roots.
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
        self.root_times: Mapping[str, Ids] = {}

    def sample(self, roots: Roots, epoch: int, iteration: int) -> Subgraph:
        """See :class:`NeighborSampler`."""
        by_type = roots if isinstance(roots, Mapping) else {self.target: roots}
        rows = {each: TimedRows() for each in self.original_ids}
        for node_type, ids in by_type.items():
            self._check_roots(ids, node_type)
            own = np.ascontiguousarray(ids, dtype=np.int64)
            stored = self.stored_as.get(node_type, node_type)
            if stored not in self.root_times:
                raise RequestError(f"times of {stored}: expected those of the roots, given none")
            times = self.root_times[stored][self.original_ids[node_type][own]]
            rows[node_type].enter(own, np.ascontiguousarray(times))
            if rows[node_type].count != own.size:
                raise ValueError("a root occurs twice in one batch")
        sizes = [{each: own.count for each, own in rows.items()}]
        hops: list[dict[Relation, HopEdges]] = []
        degrees: dict[Relation, Ids] = {}
        for hop in range(len(self.fanouts)):
            edges = {}
            # Destinations are those of before the hop, whatever a relation before this one found.
            reached = {each: (own.ids, own.times) for each, own in rows.items()}
            for relation in self.topologies:
                offsets, sources, positions, seen = self._draw_until(
                    hop, relation, *reached[relation.dst], (epoch, iteration)
                )
                until = np.repeat(reached[relation.dst][1], np.diff(offsets))
                found = rows[relation.src].enter(sources, until)
                edges[relation] = HopEdges(offsets, found, positions)
                degrees[relation] = seen
            hops.append(edges)
            sizes.append({each: own.count for each, own in rows.items()})
        nodes = {each: own.ids for each, own in rows.items()}
        return replace(
            self._subgraph(nodes, sizes, hops, (epoch, iteration)),
            times={each: own.times for each, own in rows.items()},
            seen_degrees=degrees,
        )

    def _draw_until(
        self, hop: int, relation: Relation, nodes: Ids, until: Ids, moment: tuple[int, int]
    ) -> tuple[Ids, Ids, Ids, Ids]:
        """Offsets, source ids, positions, and how many in-edges each destination has until then."""
        topology = self.topologies[relation]
        times, by_time = (
            _NONE if each is None else each for each in (topology.times, topology.by_time)
        )
        with threads_for(nodes.size):
            found: tuple[Ids, Ids, Ids, Ids] = draw_until(
                topology.indptr,
                topology.indices,
                times,
                by_time,
                self.original_ids[relation.dst],
                nodes,
                until,
                self.fanouts[hop],
                self._recent,
                self.hop_key(NEIGHBOURS, moment, hop, relation),
            )
        return found
