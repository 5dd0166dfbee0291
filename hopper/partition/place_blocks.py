"""Assign blocks to servers with few edges between servers and every measure balanced.

Blocks are merged to ever larger clusters. The largest are dealt greedily: each goes to the server
with which it has most edges, weighted by the room left there (linear deterministic greedy: Stanton
and Kliot, KDD 2012, on several measures at once). Then, from the largest clusters down to single
blocks, clusters are moved and swapped if that saves edges (as Fiduccia and Mattheyses, DAC 1982,
without their uphill moves).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.partition.merge_blocks import merge_densest, new_clusters

TOLERANCE: Final = 1.05
EDGE_TOLERANCE: Final = 1.10
# Largest clusters of a level, in shares of a server: 1/64, 1/32, ... 1.
_LEVELS: Final = 7
_ROUNDS: Final = 20
# Swaps are tried for every pair.
_MOST_SWAPPED: Final = 512


class Blocks(NamedTuple):
    """The graph of blocks, or of clusters of them."""

    edges: NDArray[np.float64]
    """[blocks, blocks] between two blocks, in both directions; 0 on the diagonal"""
    weights: NDArray[np.float64]
    """[blocks, measures] nodes of every class, then in-edges"""


def place_blocks(blocks: Blocks, servers: int) -> NDArray[np.int32]:
    """Return [blocks] int32: the server of each block.

    Nodes of every class are within 5 % of their mean and edges within 10 %, as far as blocks are
    small enough for that.
    """
    mean = blocks.weights.sum(axis=0) / servers
    nodes = blocks.weights[:, :-1].sum(axis=1)
    clusters = new_clusters(blocks.edges, nodes, blocks.weights[:, -1])
    levels, shares = [np.arange(nodes.size)], [0.0]
    for halvings in reversed(range(_LEVELS)):
        shares.append(0.5**halvings)
        levels.append(merge_densest(clusters, shares[-1] * mean[:-1].sum()))
    tolerance = np.full(mean.size, TOLERANCE)
    tolerance[-1] = EDGE_TOLERANCE
    homes = np.empty(0, np.int32)
    for cluster_of, share in zip(reversed(levels), reversed(shares), strict=True):
        level, number = _contract(blocks, cluster_of)
        # A measure cannot be balanced closer than its heaviest cluster; and clusters need some room
        # to move at all.
        caps = np.maximum(mean * (tolerance + share / 2), level.weights.max(axis=0))
        caps = np.maximum(caps, 1.0)
        if homes.size == 0:
            cluster_homes = _deal(level, servers, np.maximum(mean * tolerance, 1.0))
        else:
            cluster_homes = np.empty(level.weights.shape[0], np.int32)
            cluster_homes[number] = homes
        _improve(level.edges, level.weights, cluster_homes, servers, caps)
        homes = cluster_homes[number]
    return homes


def _contract(blocks: Blocks, cluster_of: NDArray[np.int64]) -> tuple[Blocks, NDArray[np.int64]]:
    """Return the graph of clusters, and the number of each block's cluster in it."""
    names, number = np.unique(cluster_of, return_inverse=True)
    order = np.argsort(number, kind="stable")
    starts = np.searchsorted(number[order], np.arange(names.size))
    edges = np.add.reduceat(blocks.edges[order], starts, axis=0)
    edges = np.add.reduceat(edges[:, order], starts, axis=1)
    np.fill_diagonal(edges, 0.0)
    return Blocks(edges, np.add.reduceat(blocks.weights[order], starts, axis=0)), number


def _deal(blocks: Blocks, servers: int, caps: NDArray[np.float64]) -> NDArray[np.int32]:
    """Deal blocks greedily to servers, the heaviest first."""
    homes = np.empty(blocks.weights.shape[0], np.int32)
    load = np.zeros((servers, caps.size))
    affinity = np.zeros((homes.size, servers))
    for block in np.argsort(-(blocks.weights / caps).max(axis=1), kind="stable"):
        filled = ((load + blocks.weights[block]) / caps).max(axis=1)
        # Affinity counts from one edge on, so that without any the emptiest server is taken.
        room = (1 + affinity[block]) * (1 - (load / caps).max(axis=1))
        scores = np.where(filled <= 1, room, -filled) if filled.min() <= 1 else -filled
        server = int(scores.argmax())
        homes[block] = server
        load[server] += blocks.weights[block]
        affinity[:, server] += blocks.edges[block]
    return homes


@kernel
def _improve(
    edges: NDArray[np.float64],
    weights: NDArray[np.float64],
    homes: NDArray[np.int32],
    servers: int,
    caps: NDArray[np.float64],
) -> None:
    """Move and swap blocks, in place, while that saves edges or ends an overload."""
    load = np.zeros((servers, caps.size))
    affinity = np.zeros((homes.size, servers))
    for block in range(homes.size):
        server = homes[block]
        for measure in range(caps.size):
            load[server, measure] += weights[block, measure]
        for other in range(homes.size):
            affinity[other, server] += edges[block, other]
    for _ in range(_ROUNDS):
        changed = False
        for block in range(homes.size):
            changed |= _move_one(edges, weights, homes, load, affinity, caps, block)
        if homes.size <= _MOST_SWAPPED:
            for block in range(homes.size):
                changed |= _swap_one(edges, weights, homes, load, affinity, caps, block)
        if not changed:
            return


# Loops over measures stand in place of sums of arrays, which take numba seconds to compile.


@kernel
def _fullness(
    load: NDArray[np.float64],
    server: int,
    weights: NDArray[np.float64],
    arriving: int,
    leaving: int,
    caps: NDArray[np.float64],
) -> float:
    """Return the largest share of a server's room that is taken; above 1 is too much.

    It is that after a block has arrived and another has left (-1 = none).
    """
    largest = 0.0
    for measure in range(caps.size):
        taken = load[server, measure]
        if arriving >= 0:
            taken += weights[arriving, measure]
        if leaving >= 0:
            taken -= weights[leaving, measure]
        largest = max(largest, taken / caps[measure])
    return largest


@kernel
def _rehome(
    edges: NDArray[np.float64],
    weights: NDArray[np.float64],
    homes: NDArray[np.int32],
    load: NDArray[np.float64],
    affinity: NDArray[np.float64],
    block: int,
    server: int,
) -> None:
    old = homes[block]
    homes[block] = server
    for measure in range(load.shape[1]):
        load[old, measure] -= weights[block, measure]
        load[server, measure] += weights[block, measure]
    for other in range(homes.size):
        affinity[other, old] -= edges[other, block]
        affinity[other, server] += edges[other, block]


@kernel
def _move_one(
    edges: NDArray[np.float64],
    weights: NDArray[np.float64],
    homes: NDArray[np.int32],
    load: NDArray[np.float64],
    affinity: NDArray[np.float64],
    caps: NDArray[np.float64],
    block: int,
) -> bool:
    """Move a block to the server where it saves most edges, or away from one that is too full."""
    home = homes[block]
    now = _fullness(load, home, weights, -1, -1, caps)
    best, most = -1, -np.inf if now > 1 else 0.0
    for server in range(load.shape[0]):
        if server == home:
            continue
        then = _fullness(load, server, weights, block, -1, caps)
        saved = affinity[block, server] - affinity[block, home]
        if saved > most and (then <= 1 or then < now):
            best, most = server, saved
    if best < 0:
        return False
    _rehome(edges, weights, homes, load, affinity, block, best)
    return True


@kernel
def _swap_one(
    edges: NDArray[np.float64],
    weights: NDArray[np.float64],
    homes: NDArray[np.int32],
    load: NDArray[np.float64],
    affinity: NDArray[np.float64],
    caps: NDArray[np.float64],
    block: int,
) -> bool:
    """Swap a block with the block of another server that saves most edges, if both have room."""
    home = homes[block]
    best, most = -1, 0.0
    for other in range(homes.size):
        server = homes[other]
        if server == home:
            continue
        saved = affinity[block, server] - affinity[block, home] - 2 * edges[block, other]
        saved += affinity[other, home] - affinity[other, server]
        if saved <= most:
            continue
        here = _fullness(load, home, weights, other, block, caps)
        there = _fullness(load, server, weights, block, other, caps)
        if here <= 1 and there <= 1:
            best, most = other, saved
    if best < 0:
        return False
    server = homes[best]
    _rehome(edges, weights, homes, load, affinity, block, server)
    _rehome(edges, weights, homes, load, affinity, best, home)
    return True
