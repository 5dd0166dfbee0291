"""Neighbor sampling by array operations: with CuPy on a GPU, or with NumPy in host memory.

It draws exactly what :class:`hopper.micrograph.sample.NeighborSampler` draws
(docs/inside/draws.md). The topologies of all relations are concatenated, and a hop draws for the
frontiers of all relations at once. So almost no GPU kernel is launched per relation (HiFuse,
section 4.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Final, Unpack

import numpy as np

from cache_server.draws.counter import GOLDEN, NEIGHBORS, PHASES, key_of, mix
from cache_server.draws.spec import DrawKey
from hopper.device.array_module import Array, on_host
from hopper.errors import RequestError
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids, Topology
from hopper.micrograph.frontier_kernels import UNSEEN
from hopper.micrograph.sample import NeighborSampler, Roots, SamplerOptions
from hopper.micrograph.subgraph import HopEdges, Subgraph

# What numba has compiled takes numbers only.
_mix: Final = getattr(mix, "py_func", mix)
_LOW: Final = np.uint64(0xFFFFFFFF)
_HALF: Final = np.uint64(32)


class ArraySampler(NeighborSampler):
    """Node-wise sampling without replacement in arrays of a module, NumPy or CuPy.

    The nodes of a subgraph are returned in host memory. Its edges stay where they were drawn. Other
    parameters are those of :class:`NeighborSampler`. A RequestError tells that a server has only
    some of a destination's in-edges in a relation.
    """

    def __init__(
        self,
        topologies: Mapping[Relation, Topology],
        original_ids: Mapping[str, Ids],
        target: str,
        fanouts: Sequence[int],
        seed: int,
        module: ModuleType = np,
        **options: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(topologies, original_ids, target, fanouts, seed, **options)
        cut = [
            str(relation)
            for relation, topology in self.topologies.items()
            if topology.positions is not None
        ]
        if cut:
            raise RequestError(
                f"sampler.device: a server has some of the edges of {', '.join(cut)} only, which "
                "are drawn in host memory alone; expected cpu"
            )
        self._np = module
        indptr, indices, originals = [], [], []
        first_rows, first_row, first_edge = dict[int, int](), 0, 0
        for relation, topology in self.topologies.items():
            # Several names of one relation share a topology, which is stored once.
            if id(topology) in first_rows:
                continue
            first_rows[id(topology)] = first_row
            indptr.append(topology.indptr + first_edge)
            indices.append(topology.indices)
            # An indptr has one more element than nodes, so the ids get a last one without meaning.
            originals.append(np.append(self.original_ids[relation.dst], 0))
            first_row += topology.indptr.size
            first_edge += topology.indices.size
        self._first_row = {name: first_rows[id(part)] for name, part in self.topologies.items()}
        self._indptr = self._concatenate(indptr)
        self._indices = self._concatenate(indices)
        self._originals = self._concatenate(originals)

    def _concatenate(self, parts: Sequence[Ids]) -> Array:
        whole = np.concatenate([*parts, np.empty(0, np.int64)])
        return self._np.asarray(whole.astype(np.int64, copy=False))

    def sample(self, roots: Roots, epoch: int, iteration: int) -> Subgraph:
        """Sample the subgraph of distinct roots, all of the target type.

        Parameters and errors are those of :meth:`NeighborSampler.sample`.
        """
        assert not isinstance(roots, Mapping)
        xp = self._np
        self._check_roots(roots, self.target)
        if np.unique(roots).size != roots.size:
            raise ValueError("a root occurs twice in one batch")
        frontiers = {node_type: xp.empty(0, np.int64) for node_type in self.original_ids}
        frontiers[self.target] = xp.asarray(np.ascontiguousarray(roots, dtype=np.int64))
        # New tables are made for every batch: filling them takes less time than clearing rows.
        tables = {
            node_type: xp.full(ids.size, UNSEEN, np.int32)
            for node_type, ids in self.original_ids.items()
        }
        tables[self.target][frontiers[self.target]] = xp.arange(roots.size, dtype=np.int32)
        sizes = [{node_type: len(ids) for node_type, ids in frontiers.items()}]
        hops = []
        for hop in range(len(self.fanouts)):
            hops.append(self._draw_hop(hop, (epoch, iteration), frontiers, tables))
            sizes.append({node_type: len(ids) for node_type, ids in frontiers.items()})
        nodes = {node_type: on_host(ids) for node_type, ids in frontiers.items()}
        return self._subgraph(nodes, sizes, hops, (epoch, iteration))

    def _draw_hop(
        self,
        hop: int,
        moment: tuple[int, int],
        frontiers: dict[str, Array],
        tables: Mapping[str, Array],
    ) -> dict[Relation, HopEdges]:
        """Draw one hop of every relation, and add new sources to the frontiers."""
        xp = self._np
        destinations = dict(frontiers)
        drawn_relations = [relation for relation in self.topologies if self.is_drawn(relation, hop)]
        none = xp.empty(0, np.int64)
        rows = [
            destinations[relation.dst] + self._first_row[relation] for relation in drawn_relations
        ]
        counts = np.array([len(relation_rows) for relation_rows in rows], np.int64)
        keys = [self.hop_key(NEIGHBORS, moment, hop, relation) for relation in drawn_relations]
        by_field = np.repeat(np.array(keys, np.uint64).reshape(-1, 4), counts, axis=0).T
        offsets, sources, positions = self._draw(
            xp.concatenate([*rows, none]),
            DrawKey(*(xp.asarray(field.copy()) for field in by_field)),
            self.fanouts[hop],
        )
        firsts = np.concatenate(([0], np.cumsum(counts)))
        bounds = on_host(offsets[xp.asarray(firsts)])
        index_of = {relation: index for index, relation in enumerate(drawn_relations)}
        source_rows = self._discover(drawn_relations, bounds, sources, frontiers, tables)
        edges = {}
        for relation in self.topologies:
            if relation not in index_of:
                indptr = xp.zeros(len(destinations[relation.dst]) + 1, np.int64)
                edges[relation] = HopEdges(indptr, none, none)
                continue
            index = index_of[relation]
            part = slice(int(bounds[index]), int(bounds[index + 1]))
            indptr = offsets[int(firsts[index]) : int(firsts[index + 1]) + 1] - bounds[index]
            edges[relation] = HopEdges(indptr, source_rows[part], positions[part])
        return edges

    def _draw(self, rows: Array, key: DrawKey, fanout: int) -> tuple[Array, Array, Array]:
        """Draw ``fanout`` in-edges (-1 = all) of rows of the concatenated topologies, [n] int64,
        with keys of [n] uint64 fields; return [n + 1] int64 offsets, and [edges] int64 sources and
        positions."""
        xp = self._np
        starts = self._indptr[rows]
        degrees = self._indptr[rows + 1] - starts
        counts = degrees if fanout < 0 else xp.minimum(degrees, fanout)
        offsets = xp.zeros(len(rows) + 1, np.int64)
        if len(rows):
            xp.cumsum(counts, out=offsets[1:])
        total = int(offsets[-1])
        # The row of each edge. CuPy's repeat does not take one count per element.
        row_of_edge = xp.searchsorted(offsets[1:], xp.arange(total), side="right")
        positions = xp.arange(total) - offsets[row_of_edge]
        partial = xp.flatnonzero(degrees > counts)
        if len(partial):
            ids = self._originals[rows[partial]].astype(np.uint64)
            fields: tuple[Array, ...] = key
            now, later, dependence, elapsed = (field[partial] for field in fields)
            phase = _high_word(_absorb(xp.uint64(key_of(PHASES)), ids), dependence)
            node_keys = _absorb(xp.where(phase + elapsed >= dependence, later, now), ids)
            edges = offsets[partial][:, None] + xp.arange(fanout)[None, :]
            positions[edges] = _draw_positions(xp, node_keys, degrees[partial], fanout)
        return offsets, self._indices[starts[row_of_edge] + positions], positions

    def _discover(
        self,
        drawn: Sequence[Relation],
        bounds: Ids,
        sources: Array,
        frontiers: dict[str, Array],
        tables: Mapping[str, Array],
    ) -> Array:
        """Return [edges] int64, the frontier row of each source. New sources are added to their
        frontiers in order of first appearance."""
        xp = self._np
        source_rows = xp.empty(len(sources), np.int64)
        for node_type in sorted({relation.src for relation in drawn}):
            # Relations are sorted by source type, so those of one type are adjacent.
            indices = [i for i, relation in enumerate(drawn) if relation.src == node_type]
            part = slice(int(bounds[indices[0]]), int(bounds[indices[-1] + 1]))
            ids, table, known = sources[part], tables[node_type], frontiers[node_type]
            unseen = ids[table[ids] == UNSEEN]
            if len(unseen):
                distinct, first = xp.unique(unseen, return_index=True)
                new = distinct[xp.argsort(first)]
                rows = xp.arange(len(known), len(known) + len(new), dtype=np.int32)
                table[new] = rows
                frontiers[node_type] = xp.concatenate((known, new))
            source_rows[part] = table[ids]
        return source_rows


def _draw_positions(xp: ModuleType, keys: Array, populations: Array, count: int) -> Array:
    """Return [n, count] int64: distinct positions of each [0, population), in the order of Floyd's
    algorithm, drawn by [n] uint64 keys. All populations are larger than ``count``."""
    turns = xp.arange(count)
    tops = populations[:, None] - count + turns[None, :]
    counters = (turns + 1).astype(np.uint64) * np.uint64(GOLDEN)
    variates = _mix(keys[:, None] + counters[None, :])
    picks = _high_word(variates, (tops + 1).astype(np.uint64)).astype(np.int64)
    for turn in range(1, count):
        is_repeat = (picks[:, :turn] == picks[:, turn : turn + 1]).any(axis=1)
        picks[:, turn] = xp.where(is_repeat, tops[:, turn], picks[:, turn])
    return picks


def _absorb(keys: Array, words: Array) -> Array:
    return _mix(keys ^ _mix(words + np.uint64(GOLDEN)))


def _high_word(x: Array, y: Array) -> Array:
    """Return the high 64 bits of the 128-bit products of uint64."""
    low_x, high_x, low_y, high_y = x & _LOW, x >> _HALF, y & _LOW, y >> _HALF
    low_high, high_low = low_x * high_y, high_x * low_y
    middle = (low_x * low_y >> _HALF) + (low_high & _LOW) + (high_low & _LOW)
    return high_x * high_y + (low_high >> _HALF) + (high_low >> _HALF) + (middle >> _HALF)
