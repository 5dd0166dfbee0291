"""Kernels of samplers that draw sources, so that one variate decides for all out-edges of a node.

The neighbour lists of a frontier are concatenated, flags mark the edges whose source was drawn, and
these are copied in the order of the lists. That takes 9 bytes for every edge of the lists. Passes
with one kind of access each take a quarter of the time of a single pass. Each thread writes its own
entries only, and sums are of integers, so results depend neither on threads nor on the order of
nodes. Specified in docs/inside/draws.md.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draw import absorb, below, variate
from cache_server.hop_draw import Drawn
from cache_server.kernel import kernel

# The fixed point of 1 / (degree + 1).
UNIT: Final = 1 << 32


@kernel(parallel=True)
def neighbour_lists(
    indptr: NDArray[np.int64], indices: NDArray[np.int64], frontier: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Concatenate the neighbour lists of a frontier.

    Returns
    -------
    [n + 1] int64 bounds of the lists, and [listed] int64 ids of their sources.
    """
    bounds = np.empty(frontier.size + 1, np.int64)
    bounds[0] = 0
    firsts = np.empty(frontier.size, np.int64)
    for i in numba.prange(frontier.size):
        firsts[i] = indptr[frontier[i]]
        bounds[i + 1] = indptr[frontier[i] + 1] - firsts[i]
    for i in range(frontier.size):
        bounds[i + 1] += bounds[i]
    listed = np.empty(bounds[frontier.size], np.int64)
    for i in numba.prange(frontier.size):
        first, start = firsts[i], bounds[i]
        for j in range(bounds[i + 1] - start):
            listed[start + j] = indices[first + j]
    return bounds, listed


@kernel(parallel=True)
def labor_flags(
    bounds: NDArray[np.int64],
    listed: NDArray[np.int64],
    original_ids: NDArray[np.int64],
    fanout: int,
    key: np.uint64,
) -> NDArray[np.bool_]:
    """Return [listed] bool: whether LABOR-0 draws each edge of the neighbour lists.

    Parameters
    ----------
    original_ids: [sources] int64.
    fanout: expected number of neighbours, positive.
    key: key of (seed, epoch, iteration, hop, relation).
    """
    flags = np.empty(listed.size, np.bool_)
    for i in numba.prange(bounds.size - 1):
        start, stop = bounds[i], bounds[i + 1]
        degree = np.uint64(stop - start)
        # Needs no case for degrees up to the fanout: below() is always less than the degree.
        for j in range(start, stop):
            number = variate(absorb(key, np.uint64(original_ids[listed[j]])), np.uint64(0))
            flags[j] = below(number, degree) < np.uint64(fanout)
    return flags


@kernel(parallel=True)
def layer_flags(
    listed: NDArray[np.int64],
    original_ids: NDArray[np.int64],
    weights: NDArray[np.uint32],
    factor: np.uint64,
    certain: np.uint64,
    key: np.uint64,
) -> NDArray[np.bool_]:
    """Return [listed] bool: whether each source of the neighbour lists is in the layer's sample.

    Parameters
    ----------
    original_ids, weights: [sources] int64 and uint32.
    factor: a source is drawn if its variate is below its weight times this.
    certain: sources of at least this weight are always drawn.
    key: key of (seed, epoch, iteration, hop, relation).
    """
    flags = np.empty(listed.size, np.bool_)
    for j in numba.prange(listed.size):
        weight = np.uint64(weights[listed[j]])
        number = variate(absorb(key, np.uint64(original_ids[listed[j]])), np.uint64(0))
        flags[j] = (weight >= certain) | (number < weight * factor)
    return flags


@kernel
def take_flagged(
    bounds: NDArray[np.int64], listed: NDArray[np.int64], flags: NDArray[np.bool_]
) -> Drawn:
    """Return the edges whose flag is set, in the order of the neighbour lists."""
    count = np.count_nonzero(flags)
    offsets = np.empty(bounds.size, np.int64)
    offsets[0] = 0
    sources = np.empty(count + 1, np.int64)
    positions = np.empty(count + 1, np.int64)
    place = 0
    for i in range(bounds.size - 1):
        start = bounds[i]
        for j in range(start, bounds[i + 1]):
            # There is no branch here, since the processor could not predict it.
            sources[place] = listed[j]
            positions[place] = j - start
            place += flags[j]
        offsets[i + 1] = place
    return offsets, sources[:count], positions[:count]


@kernel
def column_weights(
    indptr: NDArray[np.int64], indices: NDArray[np.int64], out_degrees: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """Return [sources] uint32: squared column norms of the normalised adjacency, in fixed point.

    They are 0 for a source without out-edges and at least 1 for any other.
    """
    sums = np.zeros(out_degrees.size, np.uint64)
    for destination in range(indptr.size - 1):
        degree = np.uint64(indptr[destination + 1] - indptr[destination])
        share = np.uint64(UNIT) // (degree + np.uint64(1))
        for edge in range(indptr[destination], indptr[destination + 1]):
            sums[indices[edge]] += share
    weights = np.zeros(out_degrees.size, np.uint32)
    for node in range(out_degrees.size):
        if out_degrees[node] > 0:
            weight = sums[node] // (np.uint64(out_degrees[node]) + np.uint64(1))
            weights[node] = max(weight, np.uint64(1))
    return weights


@kernel
def inverse_probabilities(
    weights: NDArray[np.uint32],
    nodes: NDArray[np.int64],
    factor: np.uint64,
    certain: np.uint64,
) -> NDArray[np.float64]:
    """Return [n] float64: one over the probability of each node; 1 for nodes of weight 0."""
    inverse = np.ones(nodes.size, np.float64)
    for i in range(nodes.size):
        weight = np.uint64(weights[nodes[i]])
        if np.uint64(0) < weight < certain:
            inverse[i] = 2.0**64 / np.float64(weight * factor)
    return inverse
