"""The numba kernels that turn drawn edges into partial sums: several edges from one rank to one
destination become a single edge from a row that arrives added up."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray


@numba.njit(cache=True, nogil=True)
def count_pairs(
    indptr: NDArray[np.int64], owners: NDArray[np.int16], ranks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[ranks] edges from each rank, and [ranks] destinations that have any from it.

    Parameters
    ----------
    indptr: [destinations + 1]. owners: [edges], the rank that owns each edge's source.
    """
    edges = np.zeros(ranks, np.int64)
    destinations = np.zeros(ranks, np.int64)
    seen = np.full(ranks, -1, np.int64)
    for row in range(indptr.size - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            owner = owners[edge]
            edges[owner] += 1
            destinations[owner] += seen[owner] != row
            seen[owner] = row
    return edges, destinations


@numba.njit(cache=True, nogil=True)
def fold_edges(
    indptr: NDArray[np.int64],
    columns: NDArray[np.int64],
    sources: NDArray[np.int64],
    owners: NDArray[np.int16],
    weights: NDArray[Any],
    folded: NDArray[np.bool_],
    edges: NDArray[np.int64],
    destinations: NDArray[np.int64],
) -> tuple[
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[Any],
    NDArray[np.int32],
    NDArray[np.int32],
    NDArray[Any],
]:
    """Take the edges from some ranks out, and put one edge for each of their partial sums in.

    Parameters
    ----------
    columns, sources, owners, weights: [edges], where each edge's source will be among the rows of
        its kind, its global id, its owner and its weight.
    folded: [ranks], whose edges to fold.
    edges, destinations: from :func:`count_pairs`.

    Returns
    -------
    indptr, columns and weights of the edges that are left: of a destination first those that were
    not folded, in their order, then its partial sums in order of rank, whose column is
    ``-1 - (place among all partial sums)`` and whose weight is 1. Then, rank after rank: for every
    partial sum its number of edges, and of these edges the source ids and weights.
    """
    ranks = folded.size
    edge_start = np.zeros(ranks + 1, np.int64)
    sum_start = np.zeros(ranks + 1, np.int64)
    for rank in range(ranks):
        edge_start[rank + 1] = edge_start[rank] + (edges[rank] if folded[rank] else 0)
        sum_start[rank + 1] = sum_start[rank] + (destinations[rank] if folded[rank] else 0)
    edge_place = edge_start[:ranks].copy()
    sum_place = sum_start[:ranks].copy()
    left = columns.size - edge_start[ranks] + sum_start[ranks]
    new_indptr = np.zeros(indptr.size, np.int64)
    new_columns = np.empty(left, np.int64)
    new_weights = np.empty(left, weights.dtype)
    sum_sizes = np.zeros(sum_start[ranks], np.int32)
    sum_sources = np.empty(edge_start[ranks], np.int32)
    sum_weights = np.empty(edge_start[ranks], weights.dtype)
    seen = np.full(ranks, -1, np.int64)
    place = 0
    for row in range(indptr.size - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            owner = owners[edge]
            if folded[owner]:
                if seen[owner] != row:
                    seen[owner] = row
                    sum_place[owner] += 1
                sum_sizes[sum_place[owner] - 1] += 1
                sum_sources[edge_place[owner]] = sources[edge]
                sum_weights[edge_place[owner]] = weights[edge]
                edge_place[owner] += 1
            else:
                new_columns[place] = columns[edge]
                new_weights[place] = weights[edge]
                place += 1
        for rank in range(ranks):
            if seen[rank] == row:
                new_columns[place] = -sum_place[rank]
                new_weights[place] = 1
                place += 1
        new_indptr[row + 1] = place
    return new_indptr, new_columns, new_weights, sum_sizes, sum_sources, sum_weights
