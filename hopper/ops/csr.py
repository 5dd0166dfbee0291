"""Gather patterns of a block, which say which rows are added to which, forward and backward.

A pattern stands for the sum ``out[r] = sum_i weight[i] * x[indices[i]]`` over the entries i of row
r. A block has four patterns: from sources or edges to destinations, and their transposes. Each is
built once and stored in ``block.prepared``, so all layers and backward passes share it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from cache_server.kernel import kernel
from hopper.graph.block import Edges
from hopper.graph.topology import Ids

_Made = TypeVar("_Made")


@dataclass
class Csr:
    """Row r of the result gathers rows ``indices[indptr[r]:indptr[r + 1]]``, in that order."""

    indptr: Tensor
    """[num_rows + 1] int64"""
    indices: Tensor
    """[entries] int64"""

    @property
    def num_rows(self) -> int:
        """The number of rows of the result."""
        return int(self.indptr.numel()) - 1


def _prepared(make: Callable[[Edges], _Made]) -> Callable[[Edges], _Made]:
    """Return a function whose result a block stores, which is made at the first call."""
    key = f"ops.{make.__name__}"

    @functools.wraps(make)
    def get(block: Edges) -> _Made:
        if key not in block.prepared:
            block.prepared[key] = make(block)
        return block.prepared[key]

    return get


@_prepared
def sources_to_destinations(block: Edges) -> Csr:
    """Return the pattern [num_dst] <- [num_src], in which destinations gather their sources."""
    return Csr(block.indptr, block.indices)


@_prepared
def destinations_to_sources(block: Edges) -> Csr:
    """Return the transposed pattern [num_src] <- [num_dst], with entries in :func:`edge_order`."""
    by_source = edges_to_sources(block)
    return Csr(by_source.indptr, destinations(block).index_select(0, by_source.indices))


@_prepared
def edges_to_sources(block: Edges) -> Csr:
    """Return the pattern [num_src] <- [edges], in which sources gather their out-edges, by a stable
    sort."""
    if block.indices.device.type != "cpu":
        return Csr(*_stable_sort(block.indices, block.num_src))
    arrays = _counting_sort(block.indices.contiguous().numpy(), block.num_src)
    return Csr(*map(torch.from_numpy, arrays))


@_prepared
def edges_to_destinations(block: Edges) -> Csr:
    """Return the pattern [num_dst] <- [edges], in which destinations gather their in-edges."""
    return Csr(block.indptr, torch.arange(block.num_edges, device=block.indptr.device))


def edge_order(block: Edges) -> Tensor:
    """Return the block's edges [edges], int64, sorted by source row, ties in block order."""
    return edges_to_sources(block).indices


@_prepared
def destinations(block: Edges) -> Tensor:
    """Return the destination row of each edge, [edges] int64, which the block stores."""
    return block.destinations()


def _stable_sort(keys: Tensor, num_keys: int) -> tuple[Tensor, Tensor]:
    """Compute the result of :func:`_counting_sort` on any device."""
    ordered, order = torch.sort(keys, stable=True)
    return torch.searchsorted(ordered, torch.arange(num_keys + 1, device=keys.device)), order


@kernel
def _counting_sort(keys: Ids, num_keys: int) -> tuple[Ids, Ids]:
    indptr = np.zeros(num_keys + 1, np.int64)
    for key in keys:
        indptr[key + 1] += 1
    for key in range(num_keys):
        indptr[key + 1] += indptr[key]
    next_index = indptr[:-1].copy()
    order = np.empty(keys.size, np.int64)
    for i in range(keys.size):
        key = keys[i]
        order[next_index[key]] = i
        next_index[key] += 1
    return indptr, order
