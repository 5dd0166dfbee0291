"""Merge blocks of nodes, and assign them to servers with few edges between servers.

Merging takes repeatedly the two blocks or clusters with most edges over the product of their
degrees, which corrects for hubs (agglomerative clustering by average linkage, on a dense matrix).

To be assigned, blocks are merged to ever larger clusters. The largest are dealt greedily: each goes
to the server with which it has most edges, weighted by the room left there (linear deterministic
greedy: Stanton and Kliot, KDD 2012, on several measures at once). Then, from the largest clusters
down to single blocks, clusters are moved and swapped if that saves edges (as Fiduccia and
Mattheyses, DAC 1982, without their uphill moves). Every measure is balanced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.graph.topology import Ids
from hopper.partition.balance import TOLERANCE

Floats = NDArray[np.float64]
EDGE_TOLERANCE: Final = 1.10
_CLUSTERS_A_SERVER: Final = 32
# Largest clusters of a level, in shares of a server: 1/64, 1/32, ... 1.
_LEVELS: Final = 7
_ROUNDS: Final = 20
# Swaps are tried for every pair.
_MOST_SWAPPED: Final = 512


class Blocks(NamedTuple):
    """The graph of blocks, or of clusters of them."""

    edges: Floats
    """[blocks, blocks] between two blocks, in both directions; 0 on the diagonal"""
    weights: Floats
    """[blocks, measures] nodes of every class, then in-edges"""


class _Placing(NamedTuple):
    """Blocks or clusters while they are moved between servers."""

    edges: Floats
    weights: Floats
    homes: NDArray[np.int32]
    caps: Floats
    """[measures] the room of every server"""
    load: Floats
    """[servers, measures]"""
    affinity: Floats
    """[blocks, servers] edges of each block to those of each server"""


def merge_blocks(nodes: Ids, edges: Ids, servers: int) -> NDArray[np.int32]:
    """Return [blocks] int32: the cluster of each block, with at most 1/32 of a server's nodes
    unless it is a single block. Blocks have ``nodes`` [blocks], and ``edges`` as below."""
    blocks, most = _without_diagonal(nodes, edges), nodes.sum() / servers / _CLUSTERS_A_SERVER
    (cluster_of,) = _merge_densest(blocks, nodes.astype(np.float64), [most])
    # There is no cluster without nodes.
    cluster_of[nodes == 0] = cluster_of[nodes.argmax()]
    return np.unique(cluster_of, return_inverse=True)[1].astype(np.int32)


def place_blocks(nodes: Ids, edges: Ids, servers: int) -> NDArray[np.int32]:
    """Return [blocks] int32: the server of each block, with nodes of every class within 5 % of
    their mean and edges within 10 %, as far as blocks are small enough for that.

    Blocks have ``nodes`` [blocks, classes], and ``edges`` from block (columns) to block (rows).
    Those without nodes are not placed.
    """
    blocks, filled = _without_diagonal(nodes, edges), np.flatnonzero(nodes.any(axis=1))
    homes = np.zeros(len(nodes), np.int32)
    blocks = Blocks(blocks.edges[np.ix_(filled, filled)], blocks.weights[filled])
    homes[filled] = _place(blocks, servers)
    return homes


def _without_diagonal(nodes: Ids, edges: Ids) -> Blocks:
    between = (edges + edges.T).astype(np.float64)
    np.fill_diagonal(between, 0.0)
    return Blocks(between, np.column_stack([nodes, edges.sum(axis=1)]).astype(np.float64))


def _place(blocks: Blocks, servers: int) -> NDArray[np.int32]:
    mean = blocks.weights.sum(axis=0) / servers
    nodes = blocks.weights[:, :-1].sum(axis=1)
    shares = [0.0, *(0.5**halvings for halvings in reversed(range(_LEVELS)))]
    levels = _merge_densest(blocks, nodes, [share * mean[:-1].sum() for share in shares])
    tolerance = np.full(mean.size, TOLERANCE)
    tolerance[-1] = EDGE_TOLERANCE
    homes = np.empty(0, np.int32)
    for cluster_of, share in zip(reversed(levels), reversed(shares), strict=True):
        level, number = _contract(blocks, cluster_of)
        # A measure cannot be balanced closer than its heaviest cluster; and clusters need some room
        # to move at all.
        caps = np.maximum(mean * (tolerance + share / 2), level.weights.max(axis=0))
        if homes.size == 0:
            cluster_homes = _deal(level, servers, np.maximum(mean * tolerance, 1.0))
        else:
            cluster_homes = np.empty(level.weights.shape[0], np.int32)
            cluster_homes[number] = homes
        is_home = (np.arange(servers) == cluster_homes[:, np.newaxis]).astype(np.float64)
        load, affinity = is_home.T @ level.weights, level.edges @ is_home
        _improve(_Placing(*level, cluster_homes, np.maximum(caps, 1.0), load, affinity))
        homes = cluster_homes[number]
    return homes


def _contract(blocks: Blocks, cluster_of: Ids) -> tuple[Blocks, Ids]:
    """Return the graph of clusters, and the number of each block's cluster in it."""
    names, number = np.unique(cluster_of, return_inverse=True)
    order = np.argsort(number, kind="stable")
    starts = np.searchsorted(number[order], np.arange(names.size))
    edges = np.add.reduceat(blocks.edges[order], starts, axis=0)
    edges = np.add.reduceat(edges[:, order], starts, axis=1)
    np.fill_diagonal(edges, 0.0)
    return Blocks(edges, np.add.reduceat(blocks.weights[order], starts, axis=0)), number


def _deal(blocks: Blocks, servers: int, caps: Floats) -> NDArray[np.int32]:
    """Deal blocks greedily to servers, the heaviest first."""
    homes = np.empty(blocks.weights.shape[0], np.int32)
    load, affinity = np.zeros((servers, caps.size)), np.zeros((homes.size, servers))
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


def _merge_densest(blocks: Blocks, nodes: Floats, limits: Sequence[float]) -> list[Ids]:
    """Return [blocks], for each of some ascending limits: the cluster of each block, named by one
    of its blocks, after merging until no two connected clusters together have so few nodes."""
    edges, nodes = blocks.edges.copy(), nodes.copy()
    degrees, cluster_of = np.maximum(blocks.weights[:, -1], 1.0), np.arange(nodes.size)

    def densities(clusters: Ids, limit: float) -> Floats:
        fits = nodes[clusters, np.newaxis] + nodes <= limit
        return np.where(fits, edges[clusters] / (degrees[clusters, np.newaxis] * degrees), 0.0)

    levels = []
    for limit in limits:
        table = densities(np.arange(nodes.size), limit)
        nearest, density = table.argmax(axis=1), table.max(axis=1)
        while density.max(initial=0.0) > 0.0:
            a = int(density.argmax())
            b = int(nearest[a])
            edges[a] += edges[b]
            edges[a, a] = edges[b] = edges[:, b] = 0.0
            edges[:, a] = edges[a]
            nodes[a] += nodes[b]
            degrees[a] += degrees[b]
            cluster_of[cluster_of == b] = a
            # Only the clusters whose nearest was one of these look at all others again.
            to_a = densities(np.array([a]), limit)[0]
            is_nearer = to_a > density
            nearest[is_nearer], density[is_nearer] = a, to_a[is_nearer]
            lost = np.union1d(
                np.flatnonzero(((nearest == a) & ~is_nearer) | (nearest == b)), [a, b]
            )
            table = densities(lost, limit)
            nearest[lost], density[lost] = table.argmax(axis=1), table.max(axis=1)
        levels.append(cluster_of.copy())
    return levels


@kernel
def _improve(now: _Placing) -> None:
    """Move and swap blocks, in place, while that saves edges or ends an overload."""
    for _ in range(_ROUNDS):
        changed = False
        for block in range(now.homes.size):
            changed |= _move_one(now, block)
        if now.homes.size <= _MOST_SWAPPED:
            for block in range(now.homes.size):
                changed |= _swap_one(now, block)
        if not changed:
            return


# Loops over measures stand in place of sums of arrays, which take numba seconds to compile.


@kernel
def _fullness(now: _Placing, server: int, arriving: int, leaving: int) -> float:
    """Return the largest share of a server's room that is taken, above 1 is too much, after a block
    has arrived and another has left (-1 = none)."""
    largest = 0.0
    for measure in range(now.caps.size):
        taken = now.load[server, measure]
        if arriving >= 0:
            taken += now.weights[arriving, measure]
        if leaving >= 0:
            taken -= now.weights[leaving, measure]
        largest = max(largest, taken / now.caps[measure])
    return largest


@kernel
def _rehome(now: _Placing, block: int, server: int) -> None:
    old = now.homes[block]
    now.homes[block] = server
    for measure in range(now.load.shape[1]):
        now.load[old, measure] -= now.weights[block, measure]
        now.load[server, measure] += now.weights[block, measure]
    for other in range(now.homes.size):
        now.affinity[other, old] -= now.edges[other, block]
        now.affinity[other, server] += now.edges[other, block]


@kernel
def _move_one(now: _Placing, block: int) -> bool:
    """Move a block to the server where it saves most edges, or away from one that is too full."""
    home = now.homes[block]
    before = _fullness(now, home, -1, -1)
    best, most = -1, -np.inf if before > 1 else 0.0
    for server in range(now.load.shape[0]):
        if server == home:
            continue
        after = _fullness(now, server, block, -1)
        saved = now.affinity[block, server] - now.affinity[block, home]
        if saved > most and (after <= 1 or after < before):
            best, most = server, saved
    if best >= 0:
        _rehome(now, block, best)
    return best >= 0


@kernel
def _swap_one(now: _Placing, block: int) -> bool:
    """Swap a block with the block of another server that saves most edges, if both have room."""
    home, affinity = now.homes[block], now.affinity
    best, most = -1, 0.0
    for other in range(now.homes.size):
        server = now.homes[other]
        if server == home:
            continue
        saved = affinity[block, server] - affinity[block, home] - 2 * now.edges[block, other]
        saved += affinity[other, home] - affinity[other, server]
        if saved <= most:
            continue
        if _fullness(now, home, other, block) <= 1 and _fullness(now, server, block, other) <= 1:
            best, most = other, saved
    if best >= 0:
        server = now.homes[best]
        _rehome(now, block, server)
        _rehome(now, best, home)
    return best >= 0
