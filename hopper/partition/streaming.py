"""Assign nodes to servers in passes over the graph on disk, with a few numbers a node in memory.

This serves graphs that METIS cannot hold. As in BGL (Liu et al., NSDI 2023), a breadth-first search
from many sources gathers nodes in connected blocks of bounded size, and blocks go to servers by
their edges and the room there. Before and after that, passes over the nodes
(hopper.partition.neighbor_stream) move each node to the label of most of its in-neighbours. This is
size-constrained label propagation (Meyerhenke, Sanders and Schulz, SEA 2014); with servers as
labels it is re-streaming (Nishimura and Ugander, KDD 2013).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import draw_positions, key_of
from hopper.graph.memory_budget import memory_budget
from hopper.graph.schema import GraphSchema
from hopper.partition.balance import balance_classes
from hopper.partition.label_passes import (
    NO_LABEL,
    Labelling,
    adopt,
    claim,
    count_between,
    forget,
    relabel_all,
    relabel_chunk,
    spill,
    start_poll,
    tally,
    vote,
)
from hopper.partition.neighbor_stream import Chunk, NeighborStream
from hopper.partition.node_arrays import NodeArrays
from hopper.partition.place_blocks import TOLERANCE, Blocks, place_blocks
from hopper.phases import Phases, Progress

# No other stream of draws begins with this word, as in hopper.partition.random.
_STREAM: Final = int.from_bytes(hashlib.sha256(b"streaming partition").digest()[:8], "little")
MOST_BLOCKS: Final = 1024
DENSE_BYTES: Final = 64
"""Bytes of memory for each pair of blocks."""
# Pieces of memory for all pairs of blocks.
_PIECES: Final = 4
_NODES_A_BLOCK: Final = 16
_BLOCKS_A_SERVER: Final = 8
# How much larger than the mean a block may grow when it is made purer.
_GROWTH: Final = 4
_CLAIM_PASSES: Final = 8
_PURE_PASSES: Final = 10
# Share of its in-neighbours that a node may lose when its server has too many of its class.
_THRESHOLDS: Final = (0.0, 0.1, 0.3, 1.0, 1.0)
# A pass that changes a smaller share of the nodes is the last of its kind.
_SETTLED: Final = 1 / 500


def assign_stream(
    schema: GraphSchema,
    stream: NeighborStream,
    servers: int,
    seed: int,
    roots: NDArray[np.int64],
    phases: Phases,
    arrays: NodeArrays,
) -> NDArray[np.int32]:
    """Return [nodes] int32: the server of every stacked id.

    Parameters
    ----------
    roots: [nodes of the target type] int64, number of training roots at each node. Nodes with roots
        are balanced within 5 %, and so are the other nodes of every type.
    seed: seed of the sources of the breadth-first search.
    arrays: makes arrays with a number for each node.
    """
    if servers == 1:
        return arrays.full(stream.nodes, np.int32)
    have_neighbors = stream.have_neighbors(arrays.full)
    poll = None if have_neighbors.all() else start_poll(have_neighbors, arrays)
    count = number_of_blocks(stream.nodes, servers)
    with phases.phase("gather nodes in blocks (edges)", stream.edges * _CLAIM_PASSES) as progress:
        state = _grow_blocks(_Passes(stream, progress, _CLAIM_PASSES), count, seed, arrays)
    budget = _PURE_PASSES + 2
    with phases.phase("move nodes between blocks (edges)", stream.edges * budget) as progress:
        passes = _Passes(stream, progress, budget)
        _settle(passes, _scale_caps(state, _GROWTH), (0.0,) * _PURE_PASSES)
        _place_sources(passes, _scale_caps(state, _GROWTH), poll)
        edges = np.zeros((count, count), np.int64)
        passes.run(lambda chunk: count_between(*chunk, state.labels, edges))
        passes.finish()
    classes = balance_classes(schema, roots, arrays.full(stream.nodes, np.uint8))
    with phases.phase("place the blocks"):
        blocks = _weigh(state.labels, classes, edges)
        # Reuse the array, because the blocks' labels are not read again.
        homes = state.labels
        relabel_all(homes, _place_filled(blocks, servers))
    del state, have_neighbors
    budget = len(_THRESHOLDS) + 1
    with phases.phase("move nodes between servers (edges)", stream.edges * budget) as progress:
        passes = _Passes(stream, progress, budget)
        state = _label_by_server(homes, classes, servers)
        _settle(passes, state, _THRESHOLDS)
        spill(state)
        _place_sources(passes, state, poll)
        passes.finish()
    return state.labels


def number_of_blocks(nodes: int, servers: int) -> int:
    """Return the number of blocks to gather nodes in; memory must hold a matrix of all pairs of
    blocks."""
    most = min(MOST_BLOCKS, math.isqrt(memory_budget().chunk * _PIECES // DENSE_BYTES))
    blocks = max(min(most, nodes // _NODES_A_BLOCK), servers * _BLOCKS_A_SERVER)
    return max(1, min(nodes, blocks))


class _Passes:
    """Runs passes over the edges, at most as many as planned, and shows their progress."""

    def __init__(self, stream: NeighborStream, progress: Progress, budget: int) -> None:
        self._stream = stream
        self._progress = progress
        self._left = stream.edges * budget
        self.nodes = stream.nodes

    def run(self, visit: Callable[[Chunk], Any]) -> int:
        """Visit every chunk; return the sum of the visits' results, of which None counts as 0."""
        changed = 0
        for chunk in self._stream.chunks():
            changed += visit(chunk) or 0
            self._advance(chunk.neighbors.size)
        return changed

    def finish(self) -> None:
        """Count the passes that were not needed as done."""
        self._advance(self._left)

    def _advance(self, edges: int) -> None:
        self._left -= edges
        self._progress.advance(edges)


def _grow_blocks(passes: _Passes, count: int, seed: int, arrays: NodeArrays) -> Labelling:
    """Gather nodes in ``count`` blocks of the mean size at most, from as many random sources."""
    labels = arrays.full(passes.nodes, np.int32, NO_LABEL)
    sources = np.empty(count, np.int64)
    draw_positions(
        np.uint64(key_of(_STREAM, seed)), np.int64(passes.nodes), np.int64(count), sources
    )
    labels[sources] = np.arange(count)
    state = Labelling(
        labels,
        arrays.full(passes.nodes, np.uint8),
        np.ones((count, 1), np.int64),
        np.array([math.ceil(passes.nodes / count)]),
    )
    for _ in range(_CLAIM_PASSES):
        if passes.run(lambda chunk: claim(*chunk, state)) <= passes.nodes * _SETTLED:
            break
    # Put nodes that no search reached where there is room.
    spill(state)
    passes.finish()
    return state


def _scale_caps(state: Labelling, factor: int) -> Labelling:
    return state._replace(caps=state.caps * factor)


def _settle(passes: _Passes, state: Labelling, thresholds: tuple[float, ...]) -> None:
    """Move nodes to the label of most of their in-neighbours, until few move."""
    for threshold in thresholds:
        moved = passes.run(partial(relabel_chunk, state=state, threshold=threshold))
        if moved <= passes.nodes * _SETTLED and not (state.load > state.caps).any():
            break


def _place_sources(
    passes: _Passes,
    state: Labelling,
    poll: tuple[NDArray[np.int32], NDArray[np.int32]] | None,
) -> None:
    """Move nodes without in-neighbours to the label of most nodes that sample them."""
    if poll is None:
        return
    votes, leads = poll
    forget(votes, leads)
    passes.run(lambda chunk: vote(*chunk, state.labels, votes, leads))
    adopt(votes, state)


def _weigh(
    labels: NDArray[np.int32],
    classes: NDArray[np.uint8],
    edges: NDArray[np.int64],
) -> Blocks:
    nodes = _count_by_class(labels, classes, edges.shape[0])
    weights = np.column_stack([nodes, edges.sum(axis=1)]).astype(np.float64)
    between = (edges + edges.T).astype(np.float64)
    np.fill_diagonal(between, 0.0)
    return Blocks(between, weights)


def _place_filled(blocks: Blocks, servers: int) -> NDArray[np.int32]:
    """Return [blocks] int32: the server of each block; blocks without nodes are not placed."""
    filled = np.flatnonzero(blocks.weights[:, :-1].any(axis=1))
    homes = np.zeros(blocks.weights.shape[0], np.int32)
    filled_blocks = Blocks(blocks.edges[np.ix_(filled, filled)], blocks.weights[filled])
    homes[filled] = place_blocks(filled_blocks, servers)
    return homes


def _label_by_server(
    homes: NDArray[np.int32], classes: NDArray[np.uint8], servers: int
) -> Labelling:
    load = _count_by_class(homes, classes, servers)
    totals = load.sum(axis=0)
    # The caps must suffice for all nodes, even if there are few.
    caps = np.maximum(-(-totals // servers), (totals * TOLERANCE / servers).astype(np.int64))
    return Labelling(homes, classes, load, caps)


def _count_by_class(
    labels: NDArray[np.int32], classes: NDArray[np.uint8], count: int
) -> NDArray[np.int64]:
    counts = np.zeros((count, int(classes.max()) + 1), np.int64)
    tally(labels, classes, counts)
    return counts
