"""Assign nodes to servers in passes over the graph on disk, with a few numbers a node in memory.

This serves graphs that METIS cannot hold. As in BGL (Liu et al., NSDI 2023), a breadth-first search
from many sources gathers nodes in connected blocks of bounded size, and blocks go to servers by
their edges and the room there. In between, blocks are merged to clusters. At each step, with
blocks, clusters and at last servers as labels, passes over the nodes
(hopper.partition.label_passes) move each node to the label of most of its in-neighbours. This is
size-constrained label propagation (Meyerhenke, Sanders and Schulz, SEA 2014); with servers as
labels it is re-streaming (Nishimura and Ugander, KDD 2013). Re-streaming alone cuts two to eight
times as many edges (docs/inside/partition-methods.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.counter import draw_positions, key_of
from hopper.graph.array_file import iter_pieces
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import memory_budget
from hopper.graph.topology import Ids
from hopper.partition import label_passes
from hopper.partition.balance import balance_classes, room_of
from hopper.partition.label_passes import Chunk, Labelling, Labels, NeighborStream
from hopper.partition.place_blocks import merge_blocks, place_blocks
from hopper.partition.stacked_ids import NodeArrays, hash_word
from hopper.timing.phases import Phases

MOST_BLOCKS: Final = 1024
DENSE_BYTES: Final = 64
"""Bytes of memory for each pair of blocks."""
# Pieces of memory for all pairs of blocks.
_PIECES: Final = 4
_NODES_A_BLOCK: Final = 16
_BLOCKS_A_SERVER: Final = 8
# How much larger than the mean a block or cluster may grow when it is made purer.
_GROWTH: Final = 4
_CLAIM_PASSES: Final = 8
_PURE_PASSES: Final = 10
# Share of its in-neighbours that a node may lose when its server has too many of its class.
_THRESHOLDS: Final = (0.0, 0.1, 0.3, 1.0, 1.0)
# A pass that changes a smaller share of the nodes is the last of its kind.
_SETTLED: Final = 1 / 500

Visit = Callable[[Chunk], Any]
Run = Callable[[Visit], int]
"""Visits every chunk, and returns the sum of the visits' results, of which None counts as 0."""
Poll = tuple[Labels, Labels]
"""Votes and leads, [nodes] int32 each, of nodes without in-neighbours."""


def assign_stream(
    graph: GraphDirectory, servers: int, seed: int, roots: Ids, phases: Phases, arrays: NodeArrays
) -> Labels:
    """Return [nodes] int32: the server of every stacked id.

    Nodes with training roots, of which ``roots`` [nodes of the target type] are the numbers, are
    balanced within 5 %, and so are the other nodes of every type. The sources of the breadth-first
    search depend on the seed.
    """
    stream = NeighborStream(graph)
    if servers == 1:
        return arrays.full(stream.nodes, np.int32)
    have_neighbors, poll = stream.have_neighbors(arrays.full), None
    if not have_neighbors.all():
        votes = arrays.full(stream.nodes, np.int32, label_passes.NO_LABEL)
        votes[have_neighbors] = label_passes.NOT_POLLED
        poll = votes, arrays.full(stream.nodes, np.int32)
    del have_neighbors
    count = number_of_blocks(stream.nodes, servers)
    with _passes(stream, phases, "gather nodes in blocks (edges)", _CLAIM_PASSES) as run:
        state = _grow_blocks(run, stream.nodes, count, seed, arrays)
    # The array of labels is used again for clusters and servers.
    homes, most = state.labels, _PURE_PASSES + 2
    with _passes(stream, phases, "move nodes between blocks (edges)", most) as run:
        edges = _purify(run, state._replace(room=state.room * _GROWTH), poll)
    classes = balance_classes(graph.schema, roots, arrays.full(stream.nodes, np.uint8))
    is_typed = len(graph.schema.node_types) > 1
    with phases.phase("merge blocks to clusters"):
        cluster_of = np.arange(count, dtype=np.int32)
        if is_typed:
            cluster_of = merge_blocks(state.load[:, 0], edges, servers)
        load = _rename(homes, classes, cluster_of, int(cluster_of.max()) + 1)
    # Moves between clusters hardly change the cut of graphs of one node type.
    if is_typed:
        with _passes(stream, phases, "move nodes between clusters (edges)", most) as run:
            room = -(-load.sum(axis=0) * _GROWTH // len(load))
            edges = _purify(run, Labelling(homes, classes, load, room), poll)
    with phases.phase("place the clusters"):
        load = _rename(homes, classes, place_blocks(load, edges, servers), servers)
    most = len(_THRESHOLDS) + 1
    with _passes(stream, phases, "move nodes between servers (edges)", most) as run:
        state = Labelling(homes, classes, load, room_of(load.sum(axis=0), servers))
        _settle(run, state, _THRESHOLDS)
        label_passes.spill(state)
        _place_sources(run, state, poll)
    return homes


def place_new(stream: NeighborStream, state: Labelling, phases: Phases, what: str) -> None:
    """Give servers to the nodes that have none: those of most of their neighbours with room."""
    new = state.labels < 0
    most = _CLAIM_PASSES + len(_THRESHOLDS) + 1
    with _passes(stream, phases, f"place nodes ({what})", most) as run:
        while run(lambda chunk: label_passes.claim(chunk, state)) > new.sum() * _SETTLED:
            pass
        label_passes.spill(state)
        _settle(run, state, _THRESHOLDS)
        votes = np.full(new.size, label_passes.NOT_POLLED, np.int32)
        votes[new & ~stream.have_neighbors()] = label_passes.NO_LABEL
        _place_sources(run, state, (votes, np.zeros(new.size, np.int32)))


def number_of_blocks(nodes: int, servers: int) -> int:
    """Return the number of blocks, all pairs of which memory must hold."""
    most = min(MOST_BLOCKS, math.isqrt(memory_budget().chunk * _PIECES // DENSE_BYTES))
    blocks = max(min(most, nodes // _NODES_A_BLOCK), servers * _BLOCKS_A_SERVER)
    return max(1, min(nodes, blocks))


@contextmanager
def _passes(stream: NeighborStream, phases: Phases, name: str, most: int) -> Iterator[Run]:
    """Time a phase of at most so many passes over the edges, and show its progress."""
    left = stream.edges * most
    with phases.phase(name, left) as progress:

        def run(visit: Visit) -> int:
            nonlocal left
            changed = 0
            for chunk in stream.chunks():
                changed += visit(chunk) or 0
                left -= chunk.neighbors.size
                progress.advance(chunk.neighbors.size)
            return changed

        yield run
        # Passes that were not needed are done.
        progress.advance(left)


def _grow_blocks(run: Run, nodes: int, count: int, seed: int, arrays: NodeArrays) -> Labelling:
    """Gather nodes in ``count`` blocks of the mean size at most, from as many random sources."""
    labels = arrays.full(nodes, np.int32, label_passes.NO_LABEL)
    sources = np.empty(count, np.int64)
    key = np.uint64(key_of(hash_word("streaming partition"), seed))
    draw_positions(key, np.int64(nodes), np.int64(count), sources)
    labels[sources] = np.arange(count)
    one_class, room = arrays.full(nodes, np.uint8), np.array([math.ceil(nodes / count)])
    state = Labelling(labels, one_class, np.ones((count, 1), np.int64), room)
    for _ in range(_CLAIM_PASSES):
        if run(lambda chunk: label_passes.claim(chunk, state)) <= nodes * _SETTLED:
            break
    # Put nodes that no search reached where there is room.
    label_passes.spill(state)
    return state


def _settle(run: Run, state: Labelling, thresholds: tuple[float, ...]) -> None:
    """Move nodes to the label of most of their in-neighbours, until few move."""
    for threshold in thresholds:
        moved = run(partial(label_passes.relabel_chunk, state=state, threshold=threshold))
        if moved <= state.labels.size * _SETTLED and not (state.load > state.room).any():
            break


def _place_sources(run: Run, state: Labelling, poll: Poll | None) -> None:
    """Move nodes without in-neighbours to the label of most nodes that sample them."""
    if poll is not None:
        votes, leads = poll
        votes[votes >= 0] = label_passes.NO_LABEL
        leads[:] = 0
        run(lambda chunk: label_passes.vote(chunk, state.labels, votes, leads))
        label_passes.adopt(votes, state)


def _purify(run: Run, state: Labelling, poll: Poll | None) -> Ids:
    """Move nodes between blocks or clusters, and return [labels, labels] int64: the edges from
    those of one label (columns) to those of another (rows)."""
    _settle(run, state, (0.0,) * _PURE_PASSES)
    _place_sources(run, state, poll)
    edges = np.zeros((len(state.load),) * 2, np.int64)
    run(lambda chunk: _count_between(chunk, state.labels, edges))
    return edges


def _count_between(chunk: Chunk, labels: Labels, counts: Ids) -> None:
    """Add a chunk's edges to ``counts[label of the destination, label of the source]``."""
    of_rows = labels[chunk.first : chunk.first + chunk.indptr.size - 1].astype(np.int64)
    pairs = np.repeat(of_rows, np.diff(chunk.indptr)) * len(counts) + labels[chunk.neighbors]
    counts += np.bincount(pairs, minlength=counts.size).reshape(counts.shape)


def _rename(labels: Labels, classes: NDArray[np.uint8], new: Labels, count: int) -> Ids:
    """Replace labels by ``new`` [labels], below ``count``, and return [count, classes] int64: the
    nodes of each."""
    counts = np.zeros((count, int(classes.max()) + 1), np.int64)
    for first, piece in iter_pieces(labels):
        piece[:] = new[piece]
        np.add.at(counts, (piece, classes[first : first + piece.size]), 1)
    return counts
