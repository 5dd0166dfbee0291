"""Kernels of the probabilities of edges that were drawn in proportion to their weights."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.alias_table import LONGEST, weight_at, weight_before
from cache_server.draw import absorb, variate
from cache_server.kernel import kernel
from cache_server.neighbour_draw import lacks
from cache_server.weighted_draw import NODES_A_TURN
from cache_server.weighted_list import TICKETS, Ids, Table, draw_by_search, draw_by_table


# Calls of this function and the next one would take time that can be measured.
@kernel(inline="always")
def _draw_again(
    key: np.uint64,
    sums: Ids,
    table: Table,
    first: np.int64,
    degree: np.int64,
    lacking: Ids,
    tickets: Table,
    out: Ids,
) -> None:
    """Write the positions of a list that :func:`draw_by_weight` drew without replacement.

    Parameters
    ----------
    key: key of the node's draws.
    tickets: [TICKETS] uint32, a buffer.
    out: [fanout] int64.
    """
    start = at = np.int64(0)
    stop = np.int64(out.size)
    if degree <= LONGEST and not lacking.size:
        at = draw_by_table(key, sums, table, first, degree, False, tickets, out, start, stop)
    if at < stop:
        draw_by_search(key, sums, first, degree, lacking, False, out, start, at, stop)


@kernel(inline="always")
def _next_arrival(key: np.uint64, sums: Ids, first: np.int64, drawn: Ids, left: np.int64) -> float:
    """Return the time of the first arrival after those of the drawn edges.

    Parameters
    ----------
    key: key of the times between arrivals of the node's edges.
    drawn: [fanout] int64, positions of the edges that arrive first, in order of their arrival.
    left: weight of all edges that may arrive.
    """
    passed = 0.0
    for j in range(drawn.size + 1):
        # In (0, 1), in units of 2^-53.
        u = (np.float64(variate(key, np.uint64(j)) >> np.uint64(11)) + 0.5) * 2.0**-53
        passed -= np.log(u) / np.float64(left)
        left -= weight_at(sums, first, drawn[j]) if j < drawn.size else np.int64(0)
    return passed


@kernel
def _weight_left(sums: Ids, first: np.int64, degree: np.int64, lacking: Ids) -> np.int64:
    """Return the weight of all positions of a list that may be drawn."""
    left = weight_before(sums, first, degree)
    for place in lacking:
        left -= weight_at(sums, first, place)
    return left


@kernel(parallel=True)
def inverse_probabilities(
    indptr: Ids,
    sums: Ids,
    table: Table,
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
    """Return [edges] float64: inverse probabilities of edges that :func:`draw_by_weight` drew.

    The draws are made again. They are the first arrivals of a Poisson process in which each edge
    arrives at the rate of its weight. Let t be the time of the first arrival after them. If an edge
    of weight w counts 1 / (1 - exp(-w t)) times, the expectation of a sum over drawn edges is the
    sum over all edges (bottom-k samples: Cohen and Kaplan, PODC 2007, section 4).

    Parameters
    ----------
    destinations: [n] int64.
    offsets, positions: [n + 1] and [edges] int64, all or some of their drawn edges.
    key, arrivals: keys of the draws, and of the times between arrivals.
    """
    size = destinations.size
    inverse = np.ones(positions.size, np.float64)
    for turn in numba.prange((size + NODES_A_TURN - 1) // NODES_A_TURN):
        tickets, drawn = np.empty(TICKETS, np.uint32), np.empty(fanout, np.int64)
        for i in range(turn * NODES_A_TURN, min(size, (turn + 1) * NODES_A_TURN)):
            node = destinations[i]
            first = indptr[node]
            degree = indptr[node + 1] - first
            begin, end = lacks(node, nodes, bounds)
            lacking = places[begin:end]
            if degree - lacking.size <= fanout or offsets[i] == offsets[i + 1]:
                continue
            word = np.uint64(original_ids[node])
            _draw_again(absorb(key, word), sums, table, first, degree, lacking, tickets, drawn)
            left = _weight_left(sums, first, degree, lacking)
            time = _next_arrival(absorb(arrivals, word), sums, first, drawn, left)
            for j in range(offsets[i], offsets[i + 1]):
                weight = np.float64(weight_at(sums, first, positions[j]))
                inverse[j] = -1.0 / np.expm1(-weight * time)
    return inverse


@kernel(parallel=True)
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
    """Return [edges] float64: one over the expected number of times that each edge is drawn.

    This is for ``fanout`` draws by weight with replacement (Hansen and Hurwitz, Annals of
    Mathematical Statistics 14(4), 1943). Parameters are those of :func:`inverse_probabilities`.
    """
    inverse = np.empty(positions.size, np.float64)
    for i in numba.prange(destinations.size):
        node = destinations[i]
        first = indptr[node]
        begin, end = lacks(node, nodes, bounds)
        total = _weight_left(sums, first, indptr[node + 1] - first, places[begin:end])
        for j in range(offsets[i], offsets[i + 1]):
            weight = np.float64(weight_at(sums, first, positions[j]))
            inverse[j] = np.float64(total) / (weight * fanout)
    return inverse
