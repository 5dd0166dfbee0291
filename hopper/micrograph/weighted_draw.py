"""The numba kernels of draws in proportion to edges' weights, and with replacement.

Specified in docs/draws.md. A neighbour list has the running sums of its edges' weights, in whole
units. A draw is a number below the sum of what is left; what was taken before is stepped over, so a
draw takes one variate and one search, however unequal weights are.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.draw import absorb, below, kernel, variate
from hopper.micrograph.frontier import Drawn

_NODES_A_TURN: Final = 64
"""whose draws share what was allocated, and whose lists are read together"""
_LINE: Final = 8
"""words of a cache line"""
_TOUCHED: Final = 4096
"""words of a list that are read before its draws"""

Ids = NDArray[np.int64]


@kernel
def _start(sums: Ids, first: np.int64, place: np.int64) -> np.int64:
    """The weight in front of a position of a list: of all of it, where that is its length. Without
    sums every edge weighs 1."""
    if not sums.size:
        return place
    return sums[first + place - 1] if place else np.int64(0)


@kernel
def _weight(sums: Ids, first: np.int64, place: np.int64) -> np.int64:
    """The weight of an edge of a list."""
    return _start(sums, first, place + 1) - _start(sums, first, place)


@kernel
def _find(sums: Ids, first: np.int64, degree: np.int64, x: np.int64) -> np.int64:
    """The first position of a list up to which weights add up to more than ``x``."""
    if not sums.size:
        return x
    low, high = np.int64(0), degree - 1
    while low < high:
        middle = (low + high) >> 1
        if sums[first + middle] > x:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _enter(starts: Ids, widths: Ids, size: np.int64, start: np.int64, width: np.int64) -> None:
    """Insert an interval of weights among those that are taken, which ascend."""
    at = size
    while at > 0 and starts[at - 1] > start:
        starts[at], widths[at] = starts[at - 1], widths[at - 1]
        at -= 1
    starts[at], widths[at] = start, width


@kernel
def _draw_list(
    key: np.uint64,
    sums: Ids,
    first: np.int64,
    degree: np.int64,
    count: int,
    lacking: Ids,
    starts: Ids,
    widths: Ids,
    left: NDArray[np.float64],
    out: Ids,
) -> None:
    """Draw ``count`` distinct positions of a list in proportion to weights, in the order of draws.

    Parameters
    ----------
    lacking: [x] int64, ascending: positions that may not be drawn.
    starts, widths: [count + x] int64, to be written over.
    left: [count + 1] float64, written: the weight that was left before each draw, and after them.
    """
    size, total = np.int64(0), _start(sums, first, degree)
    for place in lacking:
        starts[size], widths[size] = _start(sums, first, place), _weight(sums, first, place)
        total -= widths[size]
        size += 1
    for i in range(count):
        left[i] = total
        x = np.int64(below(variate(key, np.uint64(i)), np.uint64(total)))
        for k in range(size):
            # Taken intervals ascend, so once one is not reached no later one is.
            x += widths[k] if x >= starts[k] else 0
        pick = _find(sums, first, degree, x)
        width = _weight(sums, first, pick)
        _enter(starts, widths, size, _start(sums, first, pick), width)
        size += 1
        total -= width
        out[i] = pick
    left[count] = total


@kernel
def _all_but(degree: np.int64, lacking: Ids, out: Ids) -> None:
    """All positions of a list in ascending order, but those that may not be drawn."""
    at = np.int64(0)
    skipped = np.int64(0)
    for place in range(degree):
        if skipped < lacking.size and lacking[skipped] == place:
            skipped += 1
            continue
        out[at] = place
        at += 1


@kernel
def _most_lacking(bounds: Ids) -> np.int64:
    """Of how many positions a list lacks at most."""
    most = np.int64(0)
    for i in range(bounds.size - 1):
        most = max(most, bounds[i + 1] - bounds[i])
    return most


@kernel
def _lacking(node: np.int64, nodes: Ids, bounds: Ids, places: Ids) -> Ids:
    """The positions that the list of a node lacks."""
    at = np.searchsorted(nodes, node)
    if at < nodes.size and nodes[at] == node:
        return places[bounds[at] : bounds[at + 1]]
    return places[:0]


@numba.njit(cache=True, nogil=True, parallel=True)
def _degrees_left(indptr: Ids, frontier: Ids, nodes: Ids, bounds: Ids, places: Ids) -> Ids:
    """[n] int64: how many positions of its list each node may draw."""
    degrees = np.empty(frontier.size, np.int64)
    for i in numba.prange(frontier.size):
        node = frontier[i]
        lacks = _lacking(node, nodes, bounds, places).size
        degrees[i] = indptr[node + 1] - indptr[node] - lacks
    return degrees


@kernel
def _touch(indptr: Ids, sums: Ids, nodes: Ids) -> np.int64:
    """Read a word of each cache line of some nodes' lists: a search waits for one line after
    another, these loads for none. What they add up to is returned, so that they are not left out.
    """
    found = np.int64(0)
    for node in nodes:
        for edge in range(indptr[node], min(indptr[node + 1], indptr[node] + _TOUCHED), _LINE):
            found += sums[edge]
    return found


@kernel
def _offsets(counts: Ids) -> Ids:
    """[n + 1] int64: where the draws of each node begin."""
    offsets = np.zeros(counts.size + 1, np.int64)
    for i in range(counts.size):
        offsets[i + 1] = offsets[i] + counts[i]
    return offsets


@numba.njit(cache=True, nogil=True, parallel=True)
def draw_by_weight(
    indptr: Ids,
    indices: Ids,
    sums: Ids,
    original_ids: Ids,
    frontier: Ids,
    fanout: int,
    key: np.uint64,
    nodes: Ids,
    bounds: Ids,
    places: Ids,
) -> Drawn:
    """Draw neighbours of a frontier without replacement, each in proportion to its weight among
    those that are left.

    Parameters
    ----------
    sums: [edges] int64, running sums of weights within each neighbour list.
    fanout: positive.
    nodes, bounds, places: destinations whose lists lack some, as of
        :func:`hopper.micrograph.frontier.draw_hop_without`; the rest as of ``draw_hop``.
    """
    size = frontier.size
    degrees = _degrees_left(indptr, frontier, nodes, bounds, places)
    offsets = _offsets(np.minimum(degrees, fanout))
    sources = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    most = fanout + _most_lacking(bounds)
    turns = (size + _NODES_A_TURN - 1) // _NODES_A_TURN
    touched = np.empty(turns, np.int64)
    for turn in numba.prange(turns):
        starts, widths = np.empty(most, np.int64), np.empty(most, np.int64)
        left = np.empty(fanout + 1, np.float64)
        turn_end = min(size, (turn + 1) * _NODES_A_TURN)
        touched[turn] = _touch(indptr, sums, frontier[turn * _NODES_A_TURN : turn_end])
        for i in range(turn * _NODES_A_TURN, turn_end):
            node, start, stop = frontier[i], offsets[i], offsets[i + 1]
            first = indptr[node]
            degree = indptr[node + 1] - first
            lacking = _lacking(node, nodes, bounds, places)
            out = positions[start:stop]
            if degrees[i] <= fanout:
                _all_but(degree, lacking, out)
            else:
                own = absorb(key, np.uint64(original_ids[node]))
                _draw_list(own, sums, first, degree, fanout, lacking, starts, widths, left, out)
            for j in range(start, stop):
                sources[j] = first + positions[j]
    # Apart, as in draw_hop, so that many loads are under way at once.
    for j in numba.prange(sources.size):
        sources[j] = indices[sources[j]]
    return offsets, sources, positions


@numba.njit(cache=True, nogil=True, parallel=True)
def draw_with_replacement(
    indptr: Ids,
    indices: Ids,
    sums: Ids,
    original_ids: Ids,
    frontier: Ids,
    fanout: int,
    key: np.uint64,
    nodes: Ids,
    bounds: Ids,
    places: Ids,
) -> Drawn:
    """Draw ``fanout`` neighbours of every destination that has any, each from all of them.

    Parameters
    ----------
    sums: running sums of weights; empty = all weigh the same. The rest as of
        :func:`draw_by_weight`.
    """
    size = frontier.size
    degrees = _degrees_left(indptr, frontier, nodes, bounds, places)
    offsets = _offsets(np.where(degrees > 0, np.int64(fanout), np.int64(0)))
    sources = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    for i in numba.prange(size):
        node = frontier[i]
        first = indptr[node]
        degree = indptr[node + 1] - first
        lacking = _lacking(node, nodes, bounds, places)
        own = absorb(key, np.uint64(original_ids[node]))
        total = _start(sums, first, degree)
        for place in lacking:
            total -= _weight(sums, first, place)
        for j in range(offsets[i], offsets[i + 1]):
            x = np.int64(below(variate(own, np.uint64(j - offsets[i])), np.uint64(total)))
            for place in lacking:
                x += _weight(sums, first, place) if x >= _start(sums, first, place) else 0
            pick = _find(sums, first, degree, x)
            positions[j] = pick
            sources[j] = indices[first + pick]
    return offsets, sources, positions


@numba.njit(cache=True, nogil=True, parallel=True)
def inverse_probabilities(
    indptr: Ids,
    sums: Ids,
    original_ids: Ids,
    destinations: Ids,
    offsets: Ids,
    positions: Ids,
    fanout: int,
    key: np.uint64,
    arrivals: np.uint64,
    nodes: Ids,
    bounds: Ids,
    places: Ids,
) -> NDArray[np.float64]:
    """[edges] float64: one over the probability of edges that :func:`draw_by_weight` drew.

    Draws are made again: they are the first arrivals of a Poisson process in which an edge arrives
    at the rate of its weight. With t the time of the first arrival behind them, an edge of weight w
    counts 1 / (1 - exp(-w t)) times, and sums so weighted have sums over all edges as their
    expectation (bottom-k samples: Cohen and Kaplan, PODC 2007, section 4).

    Parameters
    ----------
    destinations: [n] int64. offsets, positions: [n + 1] and [edges] int64, of their drawn edges, or
        of some of them.
    key, arrivals: keys of draws, and of the times between arrivals.
    """
    size = destinations.size
    found = np.ones(positions.size, np.float64)
    most = fanout + _most_lacking(bounds)
    for turn in numba.prange((size + _NODES_A_TURN - 1) // _NODES_A_TURN):
        starts, widths = np.empty(most, np.int64), np.empty(most, np.int64)
        left = np.empty(fanout + 1, np.float64)
        again = np.empty(fanout, np.int64)
        for i in range(turn * _NODES_A_TURN, min(size, (turn + 1) * _NODES_A_TURN)):
            node = destinations[i]
            first = indptr[node]
            degree = indptr[node + 1] - first
            lacking = _lacking(node, nodes, bounds, places)
            if degree - lacking.size <= fanout or offsets[i] == offsets[i + 1]:
                continue
            word = np.uint64(original_ids[node])
            own = absorb(key, word)
            _draw_list(own, sums, first, degree, fanout, lacking, starts, widths, left, again)
            times, passed = absorb(arrivals, word), 0.0
            for j in range(fanout + 1):
                # In (0, 1), in units of 2^-53.
                u = (np.float64(variate(times, np.uint64(j)) >> np.uint64(11)) + 0.5) * 2.0**-53
                passed -= np.log(u) / left[j]
            for j in range(offsets[i], offsets[i + 1]):
                weight = np.float64(_weight(sums, first, positions[j]))
                found[j] = -1.0 / np.expm1(-weight * passed)
    return found


@numba.njit(cache=True, nogil=True, parallel=True)
def inverse_frequencies(
    indptr: Ids,
    sums: Ids,
    destinations: Ids,
    offsets: Ids,
    positions: Ids,
    fanout: int,
    nodes: Ids,
    bounds: Ids,
    places: Ids,
) -> NDArray[np.float64]:
    """[edges] float64: one over how often an edge is among ``fanout`` draws by weight with
    replacement, in expectation (Hansen and Hurwitz, Annals of Mathematical Statistics 14(4), 1943).

    Parameters
    ----------
    as of :func:`inverse_probabilities`.
    """
    found = np.empty(positions.size, np.float64)
    for i in numba.prange(destinations.size):
        node = destinations[i]
        first = indptr[node]
        total = _start(sums, first, indptr[node + 1] - first)
        for place in _lacking(node, nodes, bounds, places):
            total -= _weight(sums, first, place)
        for j in range(offsets[i], offsets[i + 1]):
            weight = np.float64(_weight(sums, first, positions[j]))
            found[j] = np.float64(total) / (weight * fanout)
    return found
