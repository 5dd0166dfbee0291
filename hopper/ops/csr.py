"""Gather patterns of a block: which rows are added into which, forwards and backwards.

Every kernel here is one operation, ``out[r] = sum_i weight[i] * x[indices[i]]`` over the entries i
of row r. A block has four such patterns: sources or edges into destinations, and their
transposes. Each is built once per block and kept in ``block.prepared``, so forward, backward and
all layers that see the block share it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.kernel import kernel
from hopper.graph.block import Edges


@dataclass
class Csr:
    """Row r of the result gathers rows ``indices[indptr[r]:indptr[r + 1]]``, in that order."""

    indptr: Tensor
    """[num_rows + 1] int64"""
    indices: Tensor
    """[entries] int64"""

    @property
    def num_rows(self) -> int:
        """Number of rows of the result."""
        return int(self.indptr.numel()) - 1


def sources_to_destinations(block: Edges) -> Csr:
    """Pattern [num_dst] <- [num_src]: each destination gathers its sampled sources."""
    prepared = block.prepared
    if "ops.sources_to_destinations" not in prepared:
        prepared["ops.sources_to_destinations"] = Csr(block.indptr, block.indices)
    csr: Csr = prepared["ops.sources_to_destinations"]
    return csr


def destinations_to_sources(block: Edges) -> Csr:
    """Pattern [num_src] <- [num_dst]: the transpose; its entries are in :func:`edge_order`."""
    prepared = block.prepared
    if "ops.destinations_to_sources" not in prepared:
        indptr, order = _transpose(block)
        rows = destinations(block).index_select(0, order)
        prepared["ops.destinations_to_sources"] = Csr(indptr, rows)
    csr: Csr = prepared["ops.destinations_to_sources"]
    return csr


def edges_to_sources(block: Edges) -> Csr:
    """Pattern [num_src] <- [edges]: each source gathers its sampled out-edges."""
    prepared = block.prepared
    if "ops.edges_to_sources" not in prepared:
        indptr, order = _transpose(block)
        prepared["ops.edges_to_sources"] = Csr(indptr, order)
    csr: Csr = prepared["ops.edges_to_sources"]
    return csr


def edges_to_destinations(block: Edges) -> Csr:
    """Pattern [num_dst] <- [edges]: each destination gathers its sampled in-edges."""
    prepared = block.prepared
    if "ops.edges_to_destinations" not in prepared:
        every = torch.arange(block.num_edges, device=block.indptr.device)
        prepared["ops.edges_to_destinations"] = Csr(block.indptr, every)
    csr: Csr = prepared["ops.edges_to_destinations"]
    return csr


def edge_order(block: Edges) -> Tensor:
    """[edges] int64: the block's edges sorted by source row, ties in block order."""
    return _transpose(block)[1]


def destinations(block: Edges) -> Tensor:
    """[edges] int64: the destination row of each edge, kept with the block."""
    if "ops.destinations" not in block.prepared:
        block.prepared["ops.destinations"] = block.destinations()
    rows: Tensor = block.prepared["ops.destinations"]
    return rows


def _transpose(block: Edges) -> tuple[Tensor, Tensor]:
    """Row pointers by source, and the edges in that order (a stable sort, so repeatable)."""
    if "ops.transpose" not in block.prepared:
        if block.indices.device.type == "cpu":
            arrays = _counting_sort(block.indices.contiguous().numpy(), block.num_src)
            pair = torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1])
        else:
            pair = _stable_sort(block.indices, block.num_src)
        block.prepared["ops.transpose"] = pair
    indptr_t, order_t = block.prepared["ops.transpose"]
    return indptr_t, order_t


def _stable_sort(keys: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
    """As :func:`_counting_sort`, on any device."""
    ordered, order = torch.sort(keys, stable=True)
    return torch.searchsorted(ordered, torch.arange(num_keys + 1, device=keys.device)), order


@kernel
def _counting_sort(
    keys: NDArray[np.int64], num_keys: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    indptr = np.zeros(num_keys + 1, np.int64)
    for key in keys:
        indptr[key + 1] += 1
    for key in range(num_keys):
        indptr[key + 1] += indptr[key]
    place = indptr[:-1].copy()
    order = np.empty(keys.size, np.int64)
    for i in range(keys.size):
        key = keys[i]
        order[place[key]] = i
        place[key] += 1
    return indptr, order
