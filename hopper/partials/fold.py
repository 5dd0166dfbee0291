"""The numba kernels that turn drawn edges into partial sums: several edges from one rank to one
destination become a single edge from a row that arrives added up."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel


class Folded(NamedTuple):
    """What is left of a relation's edges, and what others add up; see :func:`fold_edges`."""

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


@kernel
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


@kernel
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


@kernel
def mark_readers(places: NDArray[np.int64], reader: int, readers: NDArray[np.int16]) -> None:
    """Note who reads each source: -1 nobody, -2 several.

    Parameters
    ----------
    places: [edges], which source each has. reader: who reads these. readers: [sources], changed.
    """
    for edge in range(places.size):
        known = readers[places[edge]]
        readers[places[edge]] = reader if known == -1 or known == reader else -2


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
    """Take the edges from some ranks out, and put one edge for each of their partial sums in.

    Parameters
    ----------
    columns, sources, owners, weights: [edges], where each edge's source will be, its version, its
        owner and its weight.
    folded: [ranks], whose edges to take out. edges: [ranks], how many these are.
    numbers: from :func:`number_sums`, over all relations that end in the same destinations.
    first_sum: the column of the first sum; -1 = sums get no edges here. sums: how many there are.
    sum_sources: [edges that others add up], written: their sources, as they are told.

    Returns
    -------
    What :class:`Folded` holds: indptr, columns and weights of the edges that are left, of a
    destination first those that were kept, in their order, then its partial sums in order of rank,
    with weight 1; the sizes of all sums, as far as these edges go; and of the edges that others add
    up, rank after rank and then by destination, the numbers of their sums, sources and weights.
    """
    edge_place = np.zeros(folded.size, np.int64)
    count = 0
    for rank in range(folded.size):
        edge_place[rank] = count
        count += edges[rank]
    left = columns.size - count + (sums if first_sum >= 0 else 0)
    new_indptr = np.zeros(indptr.size, np.int64)
    new_columns = np.empty(left, np.int64)
    new_weights = np.empty(left, weights.dtype)
    sizes = np.zeros(sums, np.int32)
    sum_numbers = np.empty(count, np.int32)
    sum_weights = np.empty(count, weights.dtype)
    place = 0
    for row in range(indptr.size - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            owner = owners[edge]
            if folded[owner]:
                at = edge_place[owner]
                edge_place[owner] = at + 1
                sizes[numbers[row, owner]] += 1
                sum_numbers[at] = numbers[row, owner]
                sum_sources[at] = sources[edge]
                sum_weights[at] = weights[edge]
            else:
                new_columns[place] = columns[edge]
                new_weights[place] = weights[edge]
                place += 1
        if first_sum >= 0:
            for rank in range(folded.size):
                if numbers[row, rank] >= 0:
                    new_columns[place] = first_sum + numbers[row, rank]
                    new_weights[place] = 1
                    place += 1
        new_indptr[row + 1] = place
    return new_indptr, new_columns, new_weights, sizes, sum_numbers, sum_sources, sum_weights
