"""Make nested clusters of blocks by merging the two most densely connected clusters repeatedly.

This is agglomerative clustering by average linkage on a dense matrix. The density between two
clusters is the number of their edges over the product of their degrees, which corrects for hubs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel

_NONE = -1


class Clusters(NamedTuple):
    """Clusters while they are merged; a cluster has the number of one of its blocks."""

    edges: NDArray[np.float64]
    """[blocks, blocks] between two clusters, in both directions; 0 on the diagonal"""
    nodes: NDArray[np.float64]
    """[blocks]"""
    degrees: NDArray[np.float64]
    """[blocks] sum of degrees, positive"""
    into: NDArray[np.int64]
    """[blocks] the cluster that each was merged into, or itself"""
    nearest: NDArray[np.int64]
    """[blocks] the cluster of the highest density that fits, -1 for none"""
    density: NDArray[np.float64]
    """[blocks] that density"""


def new_clusters(
    edges: NDArray[np.float64], nodes: NDArray[np.float64], degrees: NDArray[np.float64]
) -> Clusters:
    """Make a cluster of every block; merging does not change the arguments."""
    blocks = nodes.size
    return Clusters(
        edges.copy(),
        nodes.copy(),
        np.maximum(degrees, 1.0),
        np.arange(blocks),
        np.full(blocks, _NONE),
        np.zeros(blocks),
    )


@kernel
def merge_densest(clusters: Clusters, most_nodes: float) -> NDArray[np.int64]:
    """Merge until no two connected clusters together have at most ``most_nodes``.

    Returns
    -------
    [blocks] int64: the cluster of each block. Calls with growing ``most_nodes`` give nested
    clusters.
    """
    into = clusters.into
    for a in range(into.size):
        if into[a] == a:
            _look_around(clusters, a, most_nodes)
    while True:
        a = int(np.argmax(clusters.density))
        if clusters.density[a] <= 0.0:
            break
        _merge(clusters, a, clusters.nearest[a], most_nodes)
    root = np.empty(into.size, np.int64)
    for block in range(into.size):
        a = block
        while into[a] != a:
            a = into[a]
        root[block] = a
    return root


@kernel
def _density(clusters: Clusters, a: int, b: int, most_nodes: float) -> float:
    """Return the density between two clusters; 0 if they are the same, have no edge or are too
    large."""
    if a == b or clusters.into[b] != b or clusters.nodes[a] + clusters.nodes[b] > most_nodes:
        return 0.0
    return clusters.edges[a, b] / (clusters.degrees[a] * clusters.degrees[b])


@kernel
def _look_around(clusters: Clusters, a: int, most_nodes: float) -> None:
    """Find the nearest cluster of cluster a again."""
    clusters.nearest[a], clusters.density[a] = _NONE, 0.0
    for b in range(clusters.into.size):
        density = _density(clusters, a, b, most_nodes)
        if density > clusters.density[a]:
            clusters.nearest[a], clusters.density[a] = b, density


@kernel
def _merge(clusters: Clusters, a: int, b: int, most_nodes: float) -> None:
    """Merge cluster b into a, and update the nearest cluster of every cluster."""
    clusters.into[b], clusters.density[b] = a, 0.0
    clusters.nodes[a] += clusters.nodes[b]
    clusters.degrees[a] += clusters.degrees[b]
    for c in range(clusters.into.size):
        if clusters.into[c] == c and c != a:
            clusters.edges[a, c] += clusters.edges[b, c]
            clusters.edges[c, a] = clusters.edges[a, c]
    _look_around(clusters, a, most_nodes)
    for c in range(clusters.into.size):
        if clusters.into[c] != c or c == a:
            continue
        if clusters.nearest[c] == a or clusters.nearest[c] == b:
            _look_around(clusters, c, most_nodes)
        else:
            density = _density(clusters, c, a, most_nodes)
            if density > clusters.density[c]:
                clusters.nearest[c], clusters.density[c] = a, density
