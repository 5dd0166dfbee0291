"""Give nodes global ids: contiguous by server, and in order of original id within a server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.graph.array_file import create_array, open_array, release_pages
from hopper.partition.file_names import map_file


@dataclass(frozen=True)
class Relabelling:
    """The two maps of a node type's ids, as memory maps, and the bounds of each server's ids."""

    offsets: NDArray[np.int64]
    """[servers + 1] int64"""
    original_ids: NDArray[np.int64]
    """[count] int64, by global id"""
    global_ids: NDArray[np.int64]
    """[count] int64, by original id"""


def relabel(homes: NDArray[np.int32], servers: int, work: Path, node_type: str) -> Relabelling:
    """Give the nodes of one type their global ids, and write both maps.

    Parameters
    ----------
    homes: [count] int32, the server of each original id.
    work: the directory that is being written.
    """
    counts = np.zeros(servers, np.int64)
    _count(homes, counts)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    shape = (homes.size,)
    original_ids = create_array(map_file(work, node_type, "original_ids"), np.int64, shape)
    global_ids = create_array(map_file(work, node_type, "global_ids"), np.int64, shape)
    _deal(homes, offsets[:-1].copy(), np.asarray(global_ids), np.asarray(original_ids))
    release_pages(original_ids, global_ids, homes)
    return open_relabelling(work, node_type, offsets)


def open_relabelling(work: Path, node_type: str, offsets: NDArray[np.int64]) -> Relabelling:
    """Map the files that :func:`relabel` wrote; ``offsets`` are [servers + 1] int64."""
    original_ids, global_ids = (
        open_array(map_file(work, node_type, name), name, np.int64, (int(offsets[-1]),))
        for name in ("original_ids", "global_ids")
    )
    return Relabelling(offsets, original_ids, global_ids)


@kernel
def _count(homes: NDArray[np.int32], counts: NDArray[np.int64]) -> None:
    for home in homes:
        counts[home] += 1


@kernel
def _deal(
    homes: NDArray[np.int32],
    cursor: NDArray[np.int64],
    global_ids: NDArray[np.int64],
    original_ids: NDArray[np.int64],
) -> None:
    for node in range(homes.size):
        global_id = cursor[homes[node]]
        cursor[homes[node]] += 1
        global_ids[node] = global_id
        original_ids[global_id] = node


@kernel(parallel=True)
def relabel_edges(
    first: int,
    original_dst: NDArray[np.int64],
    global_src: NDArray[np.int64],
    old_indptr: NDArray[np.int64],
    old_indices: NDArray[np.int64],
    old_edge_ids: NDArray[np.int64],
    indptr: NDArray[np.int64],
    start: int,
    indices: NDArray[np.int64],
    edge_ids: NDArray[np.int64],
) -> None:
    """Fill some edges of a relation's CSC in global ids, in the same order within a row.

    Parameters
    ----------
    first: global id of the first row that may have some of the edges.
    original_dst: [rows] int64, original ids of the rows.
    global_src: [sources] int64, global id of each original source id.
    old_indptr, old_indices, old_edge_ids: CSC in original ids.
    indptr: [destinations + 1] int64, row bounds in global ids.
    start: index in the CSC of the first of the edges.
    indices, edge_ids: [edges] int64, receive the edges.
    """
    stop = start + indices.size
    for i in numba.prange(original_dst.size):
        shift = old_indptr[original_dst[i]] - indptr[first + i]
        for edge in range(max(indptr[first + i], start), min(indptr[first + i + 1], stop)):
            indices[edge - start] = global_src[old_indices[edge + shift]]
            edge_ids[edge - start] = old_edge_ids[edge + shift]
