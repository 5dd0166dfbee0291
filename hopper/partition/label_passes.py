"""Passes over the graph on disk that label nodes, for the streaming partitioner.

In-neighbours of all nodes are read chunk by chunk. Node types are stacked into one id space, and
relations are not told apart, as for METIS. But the graph is not made symmetric: the partitioner
needs the in-neighbours of a node, because sampling fetches these for it.

A *label* is the number of a block, later of a server. Every label has room for a number of nodes of
each class. Choices for the nodes of a chunk are made in parallel, without seeing each other, and
then carried out one after another. So the result does not depend on threads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.graph.array_file import iter_pieces, release_pages
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import memory_budget
from hopper.graph.topology import Ids, Topology
from hopper.partition.stacked_ids import count_nodes, type_slices

Labels = NDArray[np.int32]
ROWS_AT_ONCE: Final = 1 << 16
EDGES_AT_ONCE: Final = 1 << 21
# Decisions within a chunk do not see each other, so even a small graph is read in many.
_FEWEST_CHUNKS: Final = 64
# The number of slices is fixed, so that no result depends on the number of threads.
_SLICES = 16
NO_LABEL = -1
# In `votes`: a node that has in-neighbours and needs no votes.
NOT_POLLED = -2


class Chunk(NamedTuple):
    """The in-neighbours of consecutive nodes, in stacked ids."""

    first: int
    """stacked id of the first node"""
    indptr: Ids
    """[nodes + 1] int64, bounds of each node's in-neighbours, from 0"""
    neighbors: Ids
    """[edges] int64, a node's in-neighbours under one relation after those under another"""


class NeighborStream:
    """Reads the in-neighbours of all nodes, with one chunk in memory at a time."""

    def __init__(self, graph: GraphDirectory) -> None:
        schema, self._ids = graph.schema, type_slices(graph.schema)
        # By destination type: the first stacked id of the sources, and the edges.
        self._into: dict[str, list[tuple[int, Topology]]] = {name: [] for name in self._ids}
        for relation, kind in schema.relations.items():
            if kind.count:
                part = self._ids[relation.src].start, graph.topology(relation)
                self._into[relation.dst].append(part)
        self.nodes = count_nodes(schema)
        self.edges = sum(kind.count for kind in schema.relations.values())
        self._rows_at_once = max(1, min(ROWS_AT_ONCE, self.nodes // _FEWEST_CHUNKS))
        self._edges_at_once = min(EDGES_AT_ONCE, memory_budget().chunk // 8)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the lists of all nodes once, in the order of their stacked ids; a chunk may be used
        until the next one is asked for."""
        for node_type, parts in self._into.items():
            first, ids = 0, self._ids[node_type]
            while first < ids.stop - ids.start:
                last = self._chunk_end(parts, first, ids.stop - ids.start)
                yield _read(parts, first, last, ids.start + first)
                first = last
            for _, edges in parts:
                release_pages(edges.indptr, edges.indices)

    def have_neighbors(self, full: Callable[..., NDArray[Any]] = np.zeros) -> NDArray[np.bool_]:
        """Return [nodes] bool, which ``full`` makes: whether each node has any in-neighbours."""
        have: NDArray[np.bool_] = full(self.nodes, np.bool_)
        for node_type, parts in self._into.items():
            have_type = have[self._ids[node_type]]
            for _, edges in parts:
                for first, degrees in iter_pieces(edges.in_degrees):
                    have_type[first : first + degrees.size] |= degrees > 0
        return have

    def _chunk_end(self, parts: list[tuple[int, Topology]], first: int, count: int) -> int:
        """Return the row at which a chunk from row ``first`` ends (exclusive)."""

        def edges_before(row: int) -> int:
            return sum(int(edges.indptr[row]) for _, edges in parts)

        rows = range(first + 1, min(first + self._rows_at_once, count) + 1)
        fitting = bisect_right(rows, edges_before(first) + self._edges_at_once, key=edges_before)
        return rows[max(0, fitting - 1)]


def _read(parts: list[tuple[int, Topology]], first: int, last: int, stacked_first: int) -> Chunk:
    indptr = np.zeros(last - first + 1, np.int64)
    for _, edges in parts:
        np.add(indptr[1:], np.diff(edges.indptr[first : last + 1]), out=indptr[1:])
    np.cumsum(indptr, out=indptr)
    neighbors = np.empty(int(indptr[-1]), np.int64)
    cursor = indptr[:-1].copy()
    for src_start, edges in parts:
        start, stop = int(edges.indptr[first]), int(edges.indptr[last])
        sources = edges.indices[start:stop]
        _append_rows(edges.indptr[first : last + 1] - start, sources, src_start, cursor, neighbors)
        release_pages(edges.indices)
    return Chunk(stacked_first, indptr, neighbors)


@kernel(parallel=True)
def _append_rows(indptr: Ids, indices: Ids, src_start: int, cursor: Ids, neighbors: Ids) -> None:
    """Append one relation's neighbours to each node's list, and move the cursors."""
    for row in numba.prange(cursor.size):
        for edge in range(indptr[row], indptr[row + 1]):
            neighbors[cursor[row] + edge - indptr[row]] = indices[edge] + src_start
        cursor[row] += indptr[row + 1] - indptr[row]


class Labelling(NamedTuple):
    """The labels of all nodes, and the room that they take."""

    labels: Labels
    """[nodes] int32 by stacked id, -1 for none yet"""
    classes: NDArray[np.uint8]
    """[nodes] uint8"""
    load: Ids
    """[labels, classes] int64: nodes that carry a label"""
    room: Ids
    """[classes] int64: room of every label"""


@kernel
def claim(chunk: Chunk, state: Labelling) -> int:
    """Give labelled nodes' unlabelled in-neighbours their label where it has room (a round of a
    breadth-first search); return the number labelled."""
    claimed = 0
    for row in range(chunk.indptr.size - 1):
        label = state.labels[chunk.first + row]
        if label < 0:
            continue
        for edge in range(chunk.indptr[row], chunk.indptr[row + 1]):
            u = chunk.neighbors[edge]
            group = state.classes[u]
            if state.labels[u] < 0 and state.load[label, group] < state.room[group]:
                state.labels[u] = label
                state.load[label, group] += 1
                claimed += 1
    return claimed


@kernel
def spill(state: Labelling) -> None:
    """Give nodes without a label, or whose label is too full, the first label with room."""
    open_label = np.zeros(state.room.size, np.int64)
    for u in range(state.labels.size):
        group, label = state.classes[u], state.labels[u]
        if label >= 0 and state.load[label, group] <= state.room[group]:
            continue
        while state.load[open_label[group], group] >= state.room[group]:
            open_label[group] += 1
        if label >= 0:
            state.load[label, group] -= 1
        state.labels[u] = open_label[group]
        state.load[open_label[group], group] += 1


def relabel_chunk(chunk: Chunk, state: Labelling, threshold: float) -> int:
    """Move nodes to the label that most of their in-neighbours carry, if it has room, or away from
    one that is too full at a loss of a share of in-neighbours; return the number moved."""
    best_labels, gains = _choose(chunk, state, state.load.argmin(axis=0))
    return int(_move(chunk, best_labels, gains, state, threshold))


@kernel(parallel=True)
def _choose(chunk: Chunk, state: Labelling, emptiest: Ids) -> tuple[Labels, Ids]:
    """Choose every row's best other label with room, -1 for none, and count the neighbours won."""
    first, indptr, neighbors = chunk
    rows = indptr.size - 1
    best_labels, gains = np.full(rows, NO_LABEL, np.int32), np.zeros(rows, np.int64)
    for part in numba.prange(_SLICES):
        counts = np.zeros(state.load.shape[0], np.int64)
        for row in range(rows * part // _SLICES, rows * (part + 1) // _SLICES):
            old, group = state.labels[first + row], state.classes[first + row]
            room = state.room[group]
            for edge in range(indptr[row], indptr[row + 1]):
                counts[state.labels[neighbors[edge]]] += 1
            best, most = NO_LABEL, -1
            if state.load[old, group] > room and state.load[emptiest[group], group] < room:
                best, most = emptiest[group], counts[emptiest[group]]
            for edge in range(indptr[row], indptr[row + 1]):
                label = state.labels[neighbors[edge]]
                if label != old and counts[label] > most and state.load[label, group] < room:
                    best, most = label, counts[label]
            best_labels[row], gains[row] = best, most - counts[old]
            counts[old] = 0
            for edge in range(indptr[row], indptr[row + 1]):
                counts[state.labels[neighbors[edge]]] = 0
    return best_labels, gains


@kernel
def _move(chunk: Chunk, best_labels: Labels, gains: Ids, state: Labelling, threshold: float) -> int:
    moved = 0
    for row in range(best_labels.size):
        node, new = chunk.first + row, best_labels[row]
        old, group = state.labels[node], state.classes[node]
        if new < 0 or state.load[new, group] >= state.room[group]:
            continue
        over = state.load[old, group] > state.room[group]
        least = -threshold * (chunk.indptr[row + 1] - chunk.indptr[row])
        if gains[row] > 0 or (over and gains[row] >= least):
            _relabel(state, node, new)
            moved += 1
    return moved


@kernel
def _relabel(state: Labelling, node: int, new: int) -> None:
    group = state.classes[node]
    state.load[state.labels[node], group] -= 1
    state.load[new, group] += 1
    state.labels[node] = new


@kernel
def vote(chunk: Chunk, labels: Labels, votes: Labels, leads: Labels) -> None:
    """Let nodes vote for their label at in-neighbours that poll: a majority in one pass with two
    numbers a node (Boyer and Moore, "MJRTY", 1991)."""
    for row in range(chunk.indptr.size - 1):
        label = labels[chunk.first + row]
        for edge in range(chunk.indptr[row], chunk.indptr[row + 1]):
            u = chunk.neighbors[edge]
            if votes[u] == NOT_POLLED:
                continue
            if leads[u] == 0:
                votes[u] = label
            leads[u] += 1 if votes[u] == label else -1


@kernel
def adopt(votes: Labels, state: Labelling) -> None:
    """Move polled nodes to the label with most votes, if it has room."""
    for u in range(votes.size):
        new, group = votes[u], state.classes[u]
        if new >= 0 and new != state.labels[u] and state.load[new, group] < state.room[group]:
            _relabel(state, u, new)
