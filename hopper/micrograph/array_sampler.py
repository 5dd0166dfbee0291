"""Neighbour sampling in whole arrays: on a GPU by CuPy, and the same code in host memory by NumPy.

It draws exactly what :class:`hopper.micrograph.sample.NeighborSampler` draws (docs/draws.md). The
topologies of all relations lie behind one another, and a hop draws for the frontiers of all
relations at once: almost no kernel is run once a relation (HiFuse, section 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Final, Unpack

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import GOLDEN, NEIGHBOURS
from hopper.array_module import Array, on_host
from hopper.errors import RequestError
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.micrograph.frontier import UNSEEN
from hopper.micrograph.sample import NeighborSampler, Roots, SamplerOptions
from hopper.micrograph.subgraph import HopEdges, Subgraph

_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)


class ArraySampler(NeighborSampler):
    """Node-wise sampling where an array module has its arrays; see :class:`NeighborSampler`.

    Nodes come back in host memory, edges stay where they were drawn.

    Parameters
    ----------
    module: NumPy or CuPy.

    Raises
    ------
    As :class:`NeighborSampler`; RequestError: a relation's edges are cut over several servers.
    """

    def __init__(
        self,
        topologies: Mapping[Relation, Topology],
        original_ids: Mapping[str, NDArray[np.int64]],
        target: str,
        fanouts: Sequence[int],
        seed: int,
        module: ModuleType = np,
        **options: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(topologies, original_ids, target, fanouts, seed, **options)
        cut = [str(each) for each, own in self.topologies.items() if own.positions is not None]
        if cut:
            raise RequestError(
                f"sampler.device: a server has some of the edges of {', '.join(cut)} only, which "
                "are drawn in host memory alone; expected cpu"
            )
        self._np = module
        # Relations under several names may share a topology, and so the type that it ends in: each
        # is stored once.
        stored: dict[int, tuple[int, Topology, str]] = {}
        first_row = 0
        for relation, topology in self.topologies.items():
            if id(topology) not in stored:
                stored[id(topology)] = (first_row, topology, relation.dst)
                first_row += topology.indptr.size
        self._first_row = {
            relation: stored[id(topology)][0] for relation, topology in self.topologies.items()
        }
        indptr, originals, first_edge = [], [], 0
        for _, topology, node_type in stored.values():
            indptr.append(topology.indptr + first_edge)
            first_edge += topology.indices.size
            # A row at the end of each that stands for no node.
            originals.append(np.append(self.original_ids[node_type], 0))
        self._indptr = self._merged(indptr)
        self._originals = self._merged(originals)
        self._indices = self._merged([topology.indices for _, topology, _ in stored.values()])

    def _merged(self, parts: Sequence[NDArray[np.int64]]) -> Array:
        found = np.concatenate([*parts, np.empty(0, np.int64)])
        return self._np.asarray(found.astype(np.int64, copy=False))

    def sample(self, roots: Roots, epoch: int, iteration: int) -> Subgraph:
        """See :class:`NeighborSampler`; of roots of the target type alone."""
        assert not isinstance(roots, Mapping)
        xp = self._np
        self._check_roots(roots, self.target)
        if np.unique(roots).size != roots.size:
            raise ValueError("a root occurs twice in one batch")
        frontiers = {each: xp.empty(0, np.int64) for each in self.original_ids}
        frontiers[self.target] = xp.asarray(np.ascontiguousarray(roots, dtype=np.int64))
        # Of all node types, allocated anew: filling one takes less than telling what to clear.
        tables = {
            each: xp.full(ids.size, UNSEEN, np.int32) for each, ids in self.original_ids.items()
        }
        tables[self.target][frontiers[self.target]] = xp.arange(roots.size, dtype=np.int32)
        sizes = [{each: len(own) for each, own in frontiers.items()}]
        hops = []
        for hop in range(len(self.fanouts)):
            hops.append(self._hop(hop, (epoch, iteration), frontiers, tables))
            sizes.append({each: len(own) for each, own in frontiers.items()})
        nodes = {each: on_host(own) for each, own in frontiers.items()}
        return self._subgraph(nodes, sizes, hops, (epoch, iteration))

    def _hop(
        self,
        hop: int,
        moment: tuple[int, int],
        frontiers: dict[str, Array],
        tables: Mapping[str, Array],
    ) -> dict[Relation, HopEdges]:
        """Draw one hop of every relation; frontiers grow."""
        xp = self._np
        destinations = dict(frontiers)
        drawn = [each for each in self.topologies if self.is_drawn(each, hop)]
        none = xp.empty(0, np.int64)
        rows = [destinations[each.dst] + self._first_row[each] for each in drawn]
        counts = np.array([len(own) for own in rows], np.int64)
        keys = [self.hop_key(NEIGHBOURS, moment, hop, each) for each in drawn]
        offsets, sources, positions = self._draw(
            xp.concatenate([*rows, none]),
            xp.asarray(np.repeat(np.array(keys, np.uint64), counts)),
            self.fanouts[hop],
        )
        firsts = np.concatenate(([0], np.cumsum(counts)))
        bounds = on_host(offsets[xp.asarray(firsts)])
        places = {each: index for index, each in enumerate(drawn)}
        found_rows = self._discover(drawn, bounds, sources, frontiers, tables)
        edges = {}
        for relation in self.topologies:
            if relation not in places:
                nothing = xp.zeros(len(destinations[relation.dst]) + 1, np.int64)
                edges[relation] = HopEdges(nothing, none, none)
                continue
            at = places[relation]
            own = slice(int(bounds[at]), int(bounds[at + 1]))
            indptr = offsets[int(firsts[at]) : int(firsts[at + 1]) + 1] - bounds[at]
            edges[relation] = HopEdges(indptr, found_rows[own], positions[own])
        return edges

    def _draw(self, rows: Array, keys: Array, fanout: int) -> tuple[Array, Array, Array]:
        """The in-edges of rows of the merged topologies: [n + 1] offsets, [edges] sources and
        positions.

        Parameters
        ----------
        rows: [n] int64. keys: [n] uint64, of each row's relation at this hop.
        fanout: -1 = all.
        """
        xp = self._np
        starts = self._indptr[rows]
        degrees = self._indptr[rows + 1] - starts
        counts = degrees if fanout < 0 else xp.minimum(degrees, fanout)
        offsets = xp.zeros(len(rows) + 1, np.int64)
        if len(rows):
            xp.cumsum(counts, out=offsets[1:])
        total = int(offsets[-1])
        # The row of each edge: CuPy repeats by one number alone.
        of_row = xp.searchsorted(offsets[1:], xp.arange(total), side="right")
        positions = xp.arange(total) - offsets[of_row]
        some = xp.flatnonzero(degrees > counts)
        if len(some):
            own = _absorb(keys[some], self._originals[rows[some]].astype(np.uint64))
            places = offsets[some][:, None] + xp.arange(fanout)[None, :]
            positions[places] = _draw_positions(xp, own, degrees[some], fanout)
        return offsets, self._indices[starts[of_row] + positions], positions

    def _discover(
        self,
        drawn: Sequence[Relation],
        bounds: NDArray[np.int64],
        sources: Array,
        frontiers: dict[str, Array],
        tables: Mapping[str, Array],
    ) -> Array:
        """[edges] int64: the frontier row of each source; frontiers grow by those that are new, in
        order of first appearance."""
        xp = self._np
        found = xp.empty(len(sources), np.int64)
        for node_type in sorted({each.src for each in drawn}):
            # Relations are sorted by type of source first.
            of_type = [place for place, each in enumerate(drawn) if each.src == node_type]
            own = slice(int(bounds[of_type[0]]), int(bounds[of_type[-1] + 1]))
            ids, table, known = sources[own], tables[node_type], frontiers[node_type]
            unseen = ids[table[ids] == UNSEEN]
            if len(unseen):
                distinct, first = xp.unique(unseen, return_index=True)
                fresh = distinct[xp.argsort(first)]
                rows = xp.arange(len(known), len(known) + len(fresh), dtype=np.int32)
                table[fresh] = rows
                frontiers[node_type] = xp.concatenate((known, fresh))
            found[own] = table[ids]
        return found


def _draw_positions(xp: ModuleType, keys: Array, populations: Array, count: int) -> Array:
    """[n, count] int64: distinct positions of [0, population) each, in the order of Floyd's draws.

    Parameters
    ----------
    keys: [n] uint64. populations: [n] int64, more than ``count``.
    """
    turns = xp.arange(count)
    tops = populations[:, None] - count + turns[None, :]
    counters = (turns + 1).astype(np.uint64) * np.uint64(GOLDEN)
    variates = _mix(keys[:, None] + counters[None, :])
    picks = _high_word(variates, (tops + 1).astype(np.uint64)).astype(np.int64)
    for turn in range(1, count):
        is_there = (picks[:, :turn] == picks[:, turn : turn + 1]).any(axis=1)
        picks[:, turn] = xp.where(is_there, tops[:, turn], picks[:, turn])
    return picks


def _mix(x: Array) -> Array:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _absorb(keys: Array, words: Array) -> Array:
    return _mix(keys ^ _mix(words + np.uint64(GOLDEN)))


def _high_word(x: Array, y: Array) -> Array:
    """The high 64 bits of the 128-bit products of uint64."""
    low_x, high_x, low_y, high_y = x & _LOW, x >> _HALF, y & _LOW, y >> _HALF
    low_high, high_low = low_x * high_y, high_x * low_y
    middle = (low_x * low_y >> _HALF) + (low_high & _LOW) + (high_low & _LOW)
    return high_x * high_y + (low_high >> _HALF) + (high_low >> _HALF) + (middle >> _HALF)
