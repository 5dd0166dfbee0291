"""Kernels of draws in proportion to edges' weights, and of draws with replacement.

A draw takes one variate and one column of the list's alias table. A position that was drawn before
is rejected and drawn anew. If that takes too long, because the remaining positions have little
weight, a number below the remaining weight is looked up in the running sums of weights instead.
Specified in docs/inside/draws.md.
"""

from __future__ import annotations

from typing import Final

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.alias_table import LONGEST, fill_columns, weight_at, weight_before
from cache_server.draw import absorb, below, variate
from cache_server.hop_draw import Drawn
from cache_server.kernel import kernel
from cache_server.neighbour_draw import lacks
from cache_server.prefetch import prefetch

_NODES_A_TURN: Final = 64
"""nodes that one thread draws for with the same buffers"""
_AHEAD: Final = 4
"""how many lists ahead of its draws a table is prefetched"""
_LINE: Final = 16
"""columns of a table in a cache line"""
_PREFETCHED: Final = 256
"""most columns of a list that are prefetched"""
_ROUND: Final = 16
"""attempts by an alias table whose variates are computed together"""
_FIRST_SEARCH_COUNTER: Final = 1 << 32
"""counter of the first variate that is looked up in the sums; larger than any attempt's"""

Ids = NDArray[np.int64]
Table = NDArray[np.uint32]


@kernel
def _make_tickets(key: np.uint64, counter: np.int64, degree: np.int64, out: Table) -> None:
    """Write the column of each of the next attempts, and which part of it the variate hits.

    The column is in the high half of a ticket, the part in units of 2^-16 in the low half. Together
    they are the highest bits of variate * degree. The factors are split so that products fit 64
    bits, and the loop can be compiled to vector instructions.
    """
    wide = np.uint64(degree)
    for i in range(_ROUND):
        x = variate(key, np.uint64(counter) + np.uint64(i))
        low = ((x & np.uint64(0xFFFFFFFF)) * wide) >> np.uint64(32)
        out[i] = np.uint32(((x >> np.uint64(32)) * wide + low) >> np.uint64(16))


@kernel
def _look_up(sums: Ids, first: np.int64, degree: np.int64, x: np.uint64) -> np.int64:
    """Return the position that a variate draws from the exact columns of a list."""
    amounts, partners = np.empty(degree, np.int64), np.empty(degree, np.int64)
    capacity = fill_columns(sums, first, degree, amounts, partners)
    column = np.int64(below(x, np.uint64(degree)))
    unit = np.int64(below(x * np.uint64(degree), np.uint64(capacity)))
    return column if unit < amounts[column] else partners[column]


@kernel
def _draw_by_table(
    key: np.uint64,
    sums: Ids,
    table: Table,
    first: np.int64,
    degree: np.int64,
    replace: bool,
    tickets: Table,
    out: Ids,
    start: np.int64,
    stop: np.int64,
) -> np.int64:
    """Draw positions of a list by its alias table into ``out[start:stop]``.

    Ends when that is full, or after a round of attempts without a new position. Returns the index
    in ``out`` of the next position.

    Parameters
    ----------
    tickets: [_ROUND] uint32, a buffer.
    """
    at, before, counter = start, start - 1, np.int64(0)
    # One bit for each residue modulo 64 drawn so far. A clear bit proves that a pick is new; for
    # lists of up to 63 edges a set bit proves that it is not. The part of a column that belongs to
    # no edge has the position ``degree``, which counts as drawn.
    seen = np.uint64(1) << np.uint64(degree & 63)
    while at > before:
        before = at
        _make_tickets(key, counter, degree, tickets)
        for i in range(_ROUND):
            column, part = np.int64(tickets[i] >> 16), np.int64(tickets[i] & 0xFFFF)
            share, other = table[first + column] >> 16, np.int64(table[first + column] & 0xFFFF)
            # There is no branch here, since the processor could not predict it.
            pick = column ^ ((column ^ other) & -np.int64(part > share))
            if part == share:
                pick = _look_up(sums, first, degree, variate(key, np.uint64(counter + i)))
            out[at] = pick
            bit = np.uint64(1) << np.uint64(pick & 63)
            is_new = np.int64((seen & bit) == 0)
            if replace:
                is_new = np.int64(pick != degree)
            elif degree > 63 and is_new == 0:
                is_new = np.int64(pick != degree)
                for j in range(start, at):
                    is_new &= np.int64(out[j] != pick)
            seen |= bit
            at += is_new
            if at == stop:
                return at
        counter += _ROUND
    return at


@kernel
def _find(sums: Ids, first: np.int64, degree: np.int64, x: np.int64) -> np.int64:
    """Return the first position of a list up to which weights add up to more than ``x``."""
    low, high = np.int64(0), degree - 1
    while low < high:
        middle = (low + high) >> 1
        if sums[first + middle] > x:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def _enter(
    sums: Ids, first: np.int64, place: np.int64, starts: Ids, widths: Ids, size: np.int64
) -> np.int64:
    """Insert a position's interval into the ascending excluded intervals, and return its weight."""
    start, width = weight_before(sums, first, place), weight_at(sums, first, place)
    at = size
    while at > 0 and starts[at - 1] > start:
        starts[at], widths[at] = starts[at - 1], widths[at - 1]
        at -= 1
    starts[at], widths[at] = start, width
    return width


@kernel
def _draw_by_search(
    key: np.uint64,
    sums: Ids,
    first: np.int64,
    degree: np.int64,
    lacking: Ids,
    replace: bool,
    out: Ids,
    start: np.int64,
    at: np.int64,
    stop: np.int64,
) -> None:
    """Draw positions of a list into ``out[at:stop]`` by a search in the sums of weights.

    Parameters
    ----------
    lacking: the positions that may not be drawn, ascending.
    replace: whether positions may repeat; if not, those in ``out[start:at]`` are not drawn either.
    """
    size, total = np.int64(0), weight_before(sums, first, degree)
    most = lacking.size + stop - start
    starts, widths = np.empty(most, np.int64), np.empty(most, np.int64)
    for place in lacking:
        total -= _enter(sums, first, place, starts, widths, size)
        size += 1
    if not replace:
        for i in range(start, at):
            total -= _enter(sums, first, out[i], starts, widths, size)
            size += 1
    for i in range(at, stop):
        counter = np.uint64(_FIRST_SEARCH_COUNTER + i - start)
        x = np.int64(below(variate(key, counter), np.uint64(total)))
        for j in range(size):
            # Excluded intervals ascend, so if ``x`` does not reach one, it reaches no later one.
            x += widths[j] if x >= starts[j] else 0
        out[i] = _find(sums, first, degree, x)
        if not replace:
            total -= _enter(sums, first, out[i], starts, widths, size)
            size += 1


@kernel
def _fetch_table(table: Table, first: np.int64, degree: np.int64) -> None:
    """Prefetch the columns of a list."""
    last = first + min(degree, np.int64(_PREFETCHED)) - 1
    for column in range(first, last, _LINE):
        prefetch(table, column)
    prefetch(table, last)


@kernel(parallel=True)
def _lists(
    indptr: Ids, original_ids: Ids, frontier: Ids, key: np.uint64
) -> tuple[Ids, Ids, NDArray[np.uint64]]:
    """Return [n] int64 starts and lengths of the nodes' lists, and [n] uint64 keys."""
    size = frontier.size
    firsts, degrees = np.empty(size, np.int64), np.empty(size, np.int64)
    keys = np.empty(size, np.uint64)
    for i in numba.prange(size):
        node = frontier[i]
        firsts[i] = indptr[node]
        degrees[i] = indptr[node + 1] - firsts[i]
        keys[i] = absorb(key, np.uint64(original_ids[node]))
    return firsts, degrees, keys


@kernel(parallel=True)
def _left(degrees: Ids, frontier: Ids, nodes: Ids, bounds: Ids) -> Ids:
    """Return [n] int64: how many positions of each node's list may be drawn."""
    left = degrees.copy()
    if nodes.size:
        for i in numba.prange(frontier.size):
            begin, end = lacks(frontier[i], nodes, bounds)
            left[i] -= end - begin
    return left


@kernel
def _all_but(degree: np.int64, lacking: Ids, out: Ids, start: np.int64) -> None:
    """Write all positions of a list that may be drawn, in ascending order."""
    at, skipped = start, np.int64(0)
    for place in range(degree):
        if skipped < lacking.size and lacking[skipped] == place:
            skipped += 1
            continue
        out[at] = place
        at += 1


@kernel(parallel=True)
def draw_by_weight(
    indptr: Ids,
    indices: Ids,
    sums: Ids,
    table: Table,
    original_ids: Ids,
    frontier: Ids,
    fanout: int,
    key: np.uint64,
    nodes: Ids,
    bounds: Ids,
    places: Ids,
    replace: bool,
) -> Drawn:
    """Draw neighbours of a frontier, each in proportion to its weight among the remaining ones.

    Parameters not listed are those of :func:`cache_server.neighbour_draw.draw_hop`.

    Parameters
    ----------
    sums, table: [edges] int64 and uint32, running sums of weights and alias tables of the neighbour
        lists (docs/inside/draws.md).
    fanout: positive.
    nodes, bounds, places: edges that may not be drawn, as of
        :func:`cache_server.neighbour_draw.draw_hop_without`.
    replace: whether draws are with replacement. A list then gives ``fanout`` edges, or none.
    """
    size = frontier.size
    firsts, degrees, keys = _lists(indptr, original_ids, frontier, key)
    lefts = _left(degrees, frontier, nodes, bounds)
    offsets = np.zeros(size + 1, np.int64)
    for i in range(size):
        count = fanout if replace and lefts[i] else min(lefts[i], fanout)
        offsets[i + 1] = offsets[i] + count
    sources = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    ends = offsets[:size].copy()
    # This loop draws from most lists and does little else; the next one draws what is missing.
    for turn in numba.prange((size + _NODES_A_TURN - 1) // _NODES_A_TURN):
        tickets = np.empty(_ROUND, np.uint32)
        for i in range(turn * _NODES_A_TURN, min(size, (turn + 1) * _NODES_A_TURN)):
            # Lists are far apart in memory, so the next ones are prefetched during each draw.
            ahead = min(i + _AHEAD, size - 1)
            if degrees[ahead] > fanout:
                _fetch_table(table, firsts[ahead], degrees[ahead])
            start, stop, first, degree = offsets[i], offsets[i + 1], firsts[i], degrees[i]
            if lefts[i] < degree or degree > LONGEST:
                continue
            if degree == stop - start and not replace:
                for j in range(start, stop):
                    positions[j] = j - start
                ends[i] = stop
            elif degree:
                ends[i] = _draw_by_table(
                    keys[i], sums, table, first, degree, replace, tickets, positions, start, stop
                )
    for i in numba.prange(size):
        start, stop, first, degree = offsets[i], offsets[i + 1], firsts[i], degrees[i]
        if ends[i] < stop:
            begin, end = lacks(frontier[i], nodes, bounds)
            lacking = places[begin:end]
            if lefts[i] == stop - start and not replace:
                _all_but(degree, lacking, positions, start)
            else:
                _draw_by_search(
                    keys[i], sums, first, degree, lacking, replace, positions, start, ends[i], stop
                )
        for j in range(start, stop):
            sources[j] = first + positions[j]
    # In a loop of its own, as in draw_hop, so that many loads run at once.
    for j in numba.prange(sources.size):
        sources[j] = indices[sources[j]]
    return offsets, sources, positions


@kernel(parallel=True)
def draw_with_replacement(
    indptr: Ids,
    indices: Ids,
    original_ids: Ids,
    frontier: Ids,
    fanout: int,
    key: np.uint64,
    nodes: Ids,
    bounds: Ids,
    places: Ids,
) -> Drawn:
    """Draw ``fanout`` neighbours of every destination that has any, uniformly with replacement.

    Parameters are those of :func:`draw_by_weight`.
    """
    size = frontier.size
    firsts, degrees, keys = _lists(indptr, original_ids, frontier, key)
    lefts = _left(degrees, frontier, nodes, bounds)
    offsets = np.zeros(size + 1, np.int64)
    for i in range(size):
        offsets[i + 1] = offsets[i] + (fanout if lefts[i] else 0)
    sources = np.empty(offsets[size], np.int64)
    positions = np.empty(offsets[size], np.int64)
    for i in numba.prange(size):
        begin, end = lacks(frontier[i], nodes, bounds)
        left, start = np.uint64(lefts[i]), offsets[i]
        for j in range(start, offsets[i + 1]):
            place = np.int64(below(variate(keys[i], np.uint64(j - start)), left))
            for k in range(begin, end):
                # Convert a place among the remaining edges to one in the whole list.
                place += place >= places[k]
            positions[j] = place
            sources[j] = firsts[i] + place
    # In a loop of its own, as in draw_hop, so that many loads run at once.
    for j in numba.prange(sources.size):
        sources[j] = indices[sources[j]]
    return offsets, sources, positions


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
    for turn in numba.prange((size + _NODES_A_TURN - 1) // _NODES_A_TURN):
        tickets, again = np.empty(_ROUND, np.uint32), np.empty(fanout, np.int64)
        for i in range(turn * _NODES_A_TURN, min(size, (turn + 1) * _NODES_A_TURN)):
            node = destinations[i]
            first = indptr[node]
            degree = indptr[node + 1] - first
            begin, end = lacks(node, nodes, bounds)
            lacking = places[begin:end]
            if degree - lacking.size <= fanout or offsets[i] == offsets[i + 1]:
                continue
            word = np.uint64(original_ids[node])
            node_key = absorb(key, word)
            start = at = np.int64(0)
            stop = np.int64(fanout)
            if degree <= LONGEST and not lacking.size:
                at = _draw_by_table(
                    node_key, sums, table, first, degree, False, tickets, again, start, stop
                )
            if at < stop:
                _draw_by_search(
                    node_key, sums, first, degree, lacking, False, again, start, at, stop
                )
            left = _weight_left(sums, first, degree, lacking)
            times, passed = absorb(arrivals, word), 0.0
            for j in range(fanout + 1):
                # In (0, 1), in units of 2^-53.
                u = (np.float64(variate(times, np.uint64(j)) >> np.uint64(11)) + 0.5) * 2.0**-53
                passed -= np.log(u) / np.float64(left)
                left -= weight_at(sums, first, again[j]) if j < fanout else np.int64(0)
            for j in range(offsets[i], offsets[i + 1]):
                weight = np.float64(weight_at(sums, first, positions[j]))
                inverse[j] = -1.0 / np.expm1(-weight * passed)
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
