"""Numba kernels that turn drawn edges into partial sums.

Several edges from one rank to one destination become a single edge, from a row that this rank has
added up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel


class Folded(NamedTuple):
    """The edges of a relation that :func:`fold_edges` leaves, and those that other ranks add up."""

    indptr: NDArray[np.int64]
    columns: NDArray[np.int64]
    weights: NDArray[Any]
    sizes: NDArray[np.int32]
    numbers: NDArray[np.int32]
    sources: NDArray[Any]
    sum_weights: NDArray[Any]


@kernel
def count_pairs(
    indptr: NDArray[np.int64],
    owners: NDArray[np.int16],
    reached: NDArray[np.bool_],
    destinations: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Count the edges, and the destinations, that each rank's nodes reach.

    Parameters
    ----------
    indptr: [destinations + 1].
    owners: [edges], the rank that owns each edge's source.
    reached: [destinations, ranks], whether a destination has an edge from a rank. Updated in place.
    destinations: [ranks], how many destinations have one. Updated in place.

    Returns
    -------
    [ranks]: the number of edges from each rank.
    """
    edges = np.zeros(destinations.size, np.int64)
    for row in range(indptr.size - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            owner = owners[edge]
            edges[owner] += 1
            destinations[owner] += not reached[row, owner]
            reached[row, owner] = True
    return edges


@kernel
def number_sums(reached: NDArray[np.bool_], folded: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Number the partial sums, rank after rank.

    Parameters
    ----------
    reached: [destinations, ranks], from :func:`count_pairs`.
    folded: [ranks], whose edges are added up.

    Returns
    -------
    [destinations, ranks]: the number of each partial sum; -1 where there is none.
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


@kernel
def mark_sources(
    places: NDArray[np.int64],
    owners: NDArray[np.int16],
    wanted: NDArray[np.bool_],
    marked: NDArray[np.bool_],
) -> None:
    """Mark the sources of the edges from some ranks.

    Parameters
    ----------
    places: [edges], the index of each edge's source.
    owners: [edges], the rank that owns it.
    wanted: [ranks], the ranks whose sources to mark.
    marked: [sources], updated in place.
    """
    for edge in range(places.size):
        if wanted[owners[edge]]:
            marked[places[edge]] = True


@kernel
def mark_readers(places: NDArray[np.int64], reader: int, readers: NDArray[np.int16]) -> None:
    """Note who reads each source: -1 stands for nobody, -2 for several readers.

    Parameters
    ----------
    places: [edges], the index of each edge's source.
    reader: the reader of all of these edges.
    readers: [sources], updated in place.
    """
    for edge in range(places.size):
        previous = readers[places[edge]]
        readers[places[edge]] = reader if previous == -1 or previous == reader else -2


@kernel
def fold_edges(
    indptr: NDArray[np.int64],
    columns: NDArray[np.int64],
    sources: NDArray[np.int64],
    owners: NDArray[np.int16],
    weights: NDArray[Any],
    folded: NDArray[np.bool_],
    numbers: NDArray[np.int32],
    edges: NDArray[np.int64],
    first_sum: int,
    sums: int,
    sum_sources: NDArray[Any],
) -> tuple[Any, ...]:
    """Replace the edges from some ranks by one edge for each of their partial sums.

    Parameters
    ----------
    columns, sources, owners, weights: [edges], the column, version and owner of each edge's source,
        and the edge's weight.
    folded: [ranks], whose edges to replace.
    numbers: from :func:`number_sums`, over all relations that end in the same destinations.
    edges: [ranks], how many edges each of these ranks has.
    first_sum: the column of the first sum; -1 = sums get no edges here.
    sums: how many sums there are.
    sum_sources: [edges that others add up], written: their sources, as requests name them.

    Returns
    -------
    The fields of :class:`Folded`. ``indptr``, ``columns`` and ``weights`` are the edges that
    remain: each destination has its kept edges in their old order, then its partial sums in order
    of rank, with weight 1. ``sizes`` counts, for each sum, its edges of this relation. ``numbers``,
    ``sources`` and ``sum_weights`` are the edges that others add up, by rank and then by
    destination: the number of the sum, the source and the weight.
    """
    next_edge = np.zeros(folded.size, np.int64)
    count = 0
    for rank in range(folded.size):
        next_edge[rank] = count
        count += edges[rank]
    remaining = columns.size - count + (sums if first_sum >= 0 else 0)
    new_indptr = np.zeros(indptr.size, np.int64)
    new_columns = np.empty(remaining, np.int64)
    new_weights = np.empty(remaining, weights.dtype)
    sizes = np.zeros(sums, np.int32)
    sum_numbers = np.empty(count, np.int32)
    sum_weights = np.empty(count, weights.dtype)
    column_index = 0
    for row in range(indptr.size - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            owner = owners[edge]
            if folded[owner]:
                sum_edge = next_edge[owner]
                next_edge[owner] = sum_edge + 1
                sizes[numbers[row, owner]] += 1
                sum_numbers[sum_edge] = numbers[row, owner]
                sum_sources[sum_edge] = sources[edge]
                sum_weights[sum_edge] = weights[edge]
            else:
                new_columns[column_index] = columns[edge]
                new_weights[column_index] = weights[edge]
                column_index += 1
        if first_sum >= 0:
            for rank in range(folded.size):
                if numbers[row, rank] >= 0:
                    new_columns[column_index] = first_sum + numbers[row, rank]
                    new_weights[column_index] = 1
                    column_index += 1
        new_indptr[row + 1] = column_index
    return new_indptr, new_columns, new_weights, sizes, sum_numbers, sum_sources, sum_weights
