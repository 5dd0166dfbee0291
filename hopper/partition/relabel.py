"""Global ids: contiguous by server, and within a server in ascending order of original id."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel


@dataclass(frozen=True)
class Relabelling:
    """Both maps of one node type, and where each server's ids begin."""

    offsets: NDArray[np.int64]
    """[servers + 1] int64"""
    original_ids: NDArray[np.int64]
    """[count] int64, by global id"""
    global_ids: NDArray[np.int64]
    """[count] int64, by original id"""


def relabel(homes: NDArray[np.int32], servers: int) -> Relabelling:
    """Give the nodes of one type their global ids.

    Parameters
    ----------
    homes: [count] int32, the server of each original id.
    """
    offsets = np.zeros(servers + 1, np.int64)
    np.cumsum(np.bincount(homes, minlength=servers), out=offsets[1:])
    global_ids = np.empty(homes.size, np.int64)
    original_ids = np.empty(homes.size, np.int64)
    _deal(homes, offsets[:-1].copy(), global_ids, original_ids)
    return Relabelling(offsets, original_ids, global_ids)


@kernel
def _deal(
    homes: NDArray[np.int32],
    cursor: NDArray[np.int64],
    global_ids: NDArray[np.int64],
    original_ids: NDArray[np.int64],
) -> None:
    for node in range(homes.size):
        fresh = cursor[homes[node]]
        cursor[homes[node]] += 1
        global_ids[node] = fresh
        original_ids[fresh] = node


@kernel(parallel=True)
def relabel_rows(
    first: int,
    original_dst: NDArray[np.int64],
    global_src: NDArray[np.int64],
    old_indptr: NDArray[np.int64],
    old_indices: NDArray[np.int64],
    old_edge_ids: NDArray[np.int64],
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    edge_ids: NDArray[np.int64],
) -> None:
    """Fill some rows of a relation's CSC in global ids; the order within a row is kept.

    Parameters
    ----------
    first: global id of the first row to fill.
    original_dst: [rows] int64, original ids of the rows to fill.
    global_src: [sources] int64, global id of each original source id.
    old_indptr, old_indices, old_edge_ids: CSC in original ids.
    indptr: [destinations + 1] int64, row bounds in global ids.
    indices, edge_ids: [edges] int64, written.
    """
    for i in numba.prange(original_dst.size):
        source = old_indptr[original_dst[i]]
        place = indptr[first + i]
        for j in range(indptr[first + i + 1] - place):
            indices[place + j] = global_src[old_indices[source + j]]
            edge_ids[place + j] = old_edge_ids[source + j]


@kernel(parallel=True)
def count_cut(
    first: int,
    last: int,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    src_first: int,
    src_last: int,
) -> int:
    """Edges into rows ``first`` to ``last`` (exclusive) from sources outside their server.

    Parameters
    ----------
    src_first, src_last: the range of source global ids that the rows' server owns.
    """
    cut = 0
    for row in numba.prange(first, last):
        for place in range(indptr[row], indptr[row + 1]):
            if indices[place] < src_first or indices[place] >= src_last:
                cut += 1
    return cut
