"""Kernels that draw from one list in proportion to edges' weights.

A draw takes one variate and one column of the list's alias table. A position that was drawn before
is rejected and drawn anew. If that takes too long, because the remaining positions have little
weight, a number below the remaining weight is looked up in the running sums of weights instead.
Specified in docs/inside/draws.md.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.alias_table import fill_columns, weight_at, weight_before
from cache_server.draw import below, variate
from cache_server.kernel import kernel

TICKETS: Final = 16
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
    for i in range(TICKETS):
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
def draw_by_table(
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
    tickets: [TICKETS] uint32, a buffer.
    """
    at, before, counter = start, start - 1, np.int64(0)
    # One bit for each residue modulo 64 drawn so far. A clear bit proves that a pick is new; for
    # lists of up to 63 edges a set bit proves that it is not. The part of a column that belongs to
    # no edge has the position ``degree``, which counts as drawn.
    seen = np.uint64(1) << np.uint64(degree & 63)
    while at > before:
        before = at
        _make_tickets(key, counter, degree, tickets)
        for i in range(TICKETS):
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
        counter += TICKETS
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
def draw_by_search(
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
