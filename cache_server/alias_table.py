"""Alias tables, by which an edge is drawn in proportion to its weight in constant time.

The table of a list of d edges has d columns of equal capacity, each shared by two edges at most
(Walker, ACM TOMS 3(3), 1977; Vose, IEEE TSE 17(9), 1991). Specified in docs/inside/draws.md.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel

LONGEST: Final = (1 << 16) - 1
"""most edges of a list that has an alias table: positions and the length must fit 16 bits"""
_ENDLESS: Final = 1 << 62

Ids = NDArray[np.int64]


@kernel
def weight_before(sums: Ids, first: np.int64, place: np.int64) -> np.int64:
    """Return the sum of the weights before a position, which may be the list's length."""
    return sums[first + place - 1] if place else np.int64(0)


@kernel
def weight_at(sums: Ids, first: np.int64, place: np.int64) -> np.int64:
    """Return the weight of the edge at a position of a list."""
    return sums[first + place] - weight_before(sums, first, place)


@kernel
def _next(
    sums: Ids, first: np.int64, degree: np.int64, place: np.int64, capacity: np.int64, heavy: bool
) -> np.int64:
    """Return the next position whose weight exceeds a column's capacity (``heavy``) or does not.

    Returns the length of the list if there is none.
    """
    place += 1
    while place < degree and (weight_at(sums, first, place) > capacity) != heavy:
        place += 1
    return place


@kernel
def fill_columns(
    sums: Ids, first: np.int64, degree: np.int64, amounts: Ids, partners: Ids
) -> np.int64:
    """Fill the columns of a list with at least one edge, and return their capacity.

    Parameters
    ----------
    sums: [edges] int64, running sums of weights within each list.
    first: where the list begins.
    amounts: [degree or more] int64, written: how much of each column its own edge has.
    partners: [degree or more] int64, written: which position has the remainder; the length of the
        list = none.
    """
    capacity = (sums[first + degree - 1] + degree - 1) // degree
    light = _next(sums, first, degree, np.int64(-1), capacity, False)
    heavy = _next(sums, first, degree, np.int64(-1), capacity, True)
    column, amount = light, weight_at(sums, first, light)
    remainder = weight_at(sums, first, heavy) if heavy < degree else np.int64(_ENDLESS)
    for _ in range(degree):
        amounts[column] = amount
        partners[column] = heavy if amount < capacity else column
        remainder -= capacity - amount
        if remainder <= capacity:
            column, amount = heavy, remainder
            heavy = _next(sums, first, degree, heavy, capacity, True)
            remainder = weight_at(sums, first, heavy) if heavy < degree else np.int64(_ENDLESS)
        else:
            light = _next(sums, first, degree, light, capacity, False)
            if light < degree:
                column, amount = light, weight_at(sums, first, light)
    return capacity


@kernel
def write_tables(sums: Ids, indptr: Ids, first: int, last: int, out: NDArray[np.uint32]) -> None:
    """Write the alias tables of the lists of destinations ``first`` to ``last``.

    The high half of a column is the share of its own edge in units of 2^-16 of the capacity,
    rounded down and less than 1. The low half is the position of the other edge. Lists longer than
    :data:`LONGEST` get no table: their columns are 0.

    Parameters
    ----------
    sums: [edges] int64, running sums of weights within each list.
    indptr: [destinations + 1] int64, where each list begins.
    out: [edges] uint32, written.
    """
    longest = np.int64(0)
    for node in range(first, last):
        degree = indptr[node + 1] - indptr[node]
        if longest < degree <= LONGEST:
            longest = degree
    amounts, partners = np.empty(longest, np.int64), np.empty(longest, np.int64)
    for node in range(first, last):
        begin, degree = indptr[node], indptr[node + 1] - indptr[node]
        if degree > LONGEST:
            out[begin : begin + degree] = 0
        elif degree:
            capacity = fill_columns(sums, begin, degree, amounts, partners)
            for column in range(degree):
                share = min((amounts[column] << 16) // capacity, 0xFFFF)
                out[begin + column] = np.uint32(share << 16 | partners[column])
