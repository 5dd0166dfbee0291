"""The numba kernels that turn drawn edges into partial sums: several edges from one rank to one
destination become a single edge from a row that arrives added up."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

KEPT: Final = 0
"""a rank whose edges stay among those of the relation"""
FOLDED: Final = 1
"""a rank that adds its edges up"""
APART: Final = 2
"""a rank whose edges are looked after elsewhere"""


class Folded(NamedTuple):
    """What is left of a relation's edges, and what others add up; see :func:`fold_edges`."""

    indptr: NDArray[np.int64]
    columns: NDArray[np.int64]
    weights: NDArray[Any]
    sizes: NDArray[np.int32]
    numbers: NDArray[np.int32]
    sources: NDArray[np.int32]
    sum_weights: NDArray[Any]


@numba.njit(cache=True, nogil=True)
def count_pairs(
    indptr: NDArray[np.int64],
    owners: NDArray[np.int16],
    reached: NDArray[np.bool_],
    destinations: NDArray[np.int64],
) -> NDArray[np.int64]:
    """[ranks] edges from each rank.

    Parameters
    ----------
    indptr: [destinations + 1]. owners: [edges], the rank that owns each edge's source.
    reached: [destinations, ranks], which have an edge from which rank; added to.
    destinations: [ranks], how many have; added to.
    """
    edges = np.zeros(destinations.size, np.int64)
    for row in range(indptr.size - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            owner = owners[edge]
            edges[owner] += 1
            destinations[owner] += not reached[row, owner]
            reached[row, owner] = True
    return edges


@numba.njit(cache=True, nogil=True)
def number_sums(reached: NDArray[np.bool_], folded: NDArray[np.bool_]) -> NDArray[np.int32]:
    """[destinations, ranks]: the number of each partial sum among all, rank after rank.

    Parameters
    ----------
    reached: from :func:`count_pairs`. folded: [ranks], whose edges are added up.
    """
    numbers = np.full(reached.shape, -1, np.int32)
    count = 0
    for rank in range(folded.size):
        if folded[rank]:
            for row in range(reached.shape[0]):
                if reached[row, rank]:
                    numbers[row, rank] = count
                    count += 1
    return numbers


@numba.njit(cache=True, nogil=True)
def mark_sources(
    places: NDArray[np.int64],
    owners: NDArray[np.int16],
    wanted: NDArray[np.bool_],
    marked: NDArray[np.bool_],
) -> None:
    """Mark the sources of edges from some ranks.

    Parameters
    ----------
    places: [edges], which source each has. wanted: [ranks]. marked: [sources], added to.
    """
    for edge in range(places.size):
        if wanted[owners[edge]]:
            marked[places[edge]] = True


@numba.njit(cache=True, nogil=True)
def mark_readers(places: NDArray[np.int64], reader: int, readers: NDArray[np.int16]) -> None:
    """Note who reads each source: -1 nobody, -2 several.

    Parameters
    ----------
    places: [edges], which source each has. reader: who reads these. readers: [sources], changed.
    """
    for edge in range(places.size):
        known = readers[places[edge]]
        readers[places[edge]] = reader if known == -1 or known == reader else -2


@numba.njit(cache=True, nogil=True)
def _fold(
    indptr: NDArray[np.int64],
    columns: NDArray[np.int64],
    sources: NDArray[np.int64],
    owners: NDArray[np.int16],
    weights: NDArray[Any],
    fates: NDArray[np.int8],
    numbers: NDArray[np.int32],
    edges: NDArray[np.int64],
    sums: int,
    first_sum: int,
) -> tuple[Any, ...]:
    ranks = fates.size
    edge_place = np.zeros(ranks, np.int64)
    kept = folded = 0
    for rank in range(ranks):
        edge_place[rank] = folded
        folded += edges[rank] if fates[rank] == FOLDED else 0
        kept += edges[rank] if fates[rank] == KEPT else 0
    if first_sum >= 0:
        kept += sums
    new_indptr = np.zeros(indptr.size, np.int64)
    new_columns = np.empty(kept, np.int64)
    new_weights = np.empty(kept, weights.dtype)
    sizes = np.zeros(sums, np.int32)
    sum_numbers = np.empty(folded, np.int32)
    sum_sources = np.empty(folded, np.int32)
    sum_weights = np.empty(folded, weights.dtype)
    place = 0
    for row in range(indptr.size - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            owner = owners[edge]
            if fates[owner] == FOLDED:
                number = numbers[row, owner]
                sizes[number] += 1
                at = edge_place[owner]
                sum_numbers[at] = number
                sum_sources[at] = sources[edge]
                sum_weights[at] = weights[edge]
                edge_place[owner] = at + 1
            elif fates[owner] == KEPT:
                new_columns[place] = columns[edge]
                new_weights[place] = weights[edge]
                place += 1
        if first_sum >= 0:
            for rank in range(ranks):
                if numbers[row, rank] >= 0:
                    new_columns[place] = first_sum + numbers[row, rank]
                    new_weights[place] = 1
                    place += 1
        new_indptr[row + 1] = place
    return new_indptr, new_columns, new_weights, sizes, sum_numbers, sum_sources, sum_weights


def fold_edges(
    indptr: NDArray[np.int64],
    columns: NDArray[np.int64],
    sources: NDArray[np.int64],
    owners: NDArray[np.int16],
    weights: NDArray[Any],
    fates: NDArray[np.int8],
    numbers: NDArray[np.int32],
    edges: NDArray[np.int64],
    sums: int,
    first_sum: int,
) -> Folded:
    """Take the edges from some ranks out, and put one edge for each of their partial sums in.

    Parameters
    ----------
    columns, sources, owners, weights: [edges], where each edge's source will be, its global id, its
        owner and its weight.
    fates: [ranks], what becomes of the edges from each.
    numbers: from :func:`number_sums`, over all relations that end in the same destinations.
    edges: from :func:`count_pairs`.
    sums: how many there are.
    first_sum: the column of the first sum; -1 = sums get no edges here.

    Returns
    -------
    indptr, columns and weights of the edges that are left: of a destination first those that were
    kept, in their order, then its partial sums in order of rank, with weight 1. The sizes of all
    sums, as far as these edges go. Of the edges that others add up, rank after rank and then by
    destination: the numbers of their sums, their sources and weights.
    """
    return Folded(
        *_fold(indptr, columns, sources, owners, weights, fates, numbers, edges, sums, first_sum)
    )
