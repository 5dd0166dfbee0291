"""The kernels of the streaming partitioner's passes, which work on a chunk of nodes.

Nodes carry a *label*: the number of a block, later of a server. Every label has room for a number
of nodes of each class. Choices for the nodes of a chunk are made in parallel, without seeing each
other, and then carried out one after another. So the result does not depend on threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.partition.neighbor_stream import Chunk

Ids = NDArray[np.int64]
Labels = NDArray[np.int32]
# The number of slices is fixed, so that no result depends on the number of threads.
_SLICES = 16
NO_LABEL = -1
# In `votes`: a node that has in-neighbours and needs no votes.
NOT_POLLED = -2


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
