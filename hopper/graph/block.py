"""What models compute on: the sampled edges of one relation between two frontiers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hopper.graph.schema import Relation


@dataclass
class Block:
    """Sampled in-edges of ``num_dst`` destinations from ``num_src`` sources.

    Where source and destination type are the same, the first ``num_dst`` source rows *are* the
    destinations, in the same order. Edges of destination v are ``indptr[v]:indptr[v + 1]``, in the
    order of their draw, which is the same whoever samples v, so every kernel that adds along a row
    adds in the same order wherever it runs.
    """

    relation: Relation
    num_src: int
    num_dst: int
    indptr: Tensor
    """[num_dst + 1] int64"""
    indices: Tensor
    """[edges] int64, rows of the source frontier"""
    positions: Tensor
    """[edges] int64, position of the edge in its destination's canonical neighbour list"""
    src_original: Tensor
    """[num_src] int64, original ids of the sources"""
    dst_original: Tensor
    """[num_dst] int64, original ids of the destinations"""
    src_out_degree: Tensor
    """[num_src] int64, full-graph out-degree of the sources under this relation"""
    dst_in_degree: Tensor
    """[num_dst] int64, full-graph in-degree of the destinations under this relation"""
    iteration_key: int = 0
    """uint64 key of (seed, epoch, iteration), from which dropout keys are derived"""
    prepared: dict[str, Any] = field(default_factory=dict)
    """what a kernel backend prepared for this block (a transpose, a DGL graph)"""

    @property
    def num_edges(self) -> int:
        """Number of sampled edges."""
        return int(self.indices.numel())

    def sampled_degree(self) -> Tensor:
        """[num_dst] int64: number of sampled in-edges of each destination."""
        return self.indptr[1:] - self.indptr[:-1]

    def destinations(self) -> Tensor:
        """[edges] int64: the destination row of each edge."""
        rows = torch.arange(self.num_dst, device=self.indptr.device)
        return rows.repeat_interleave(self.sampled_degree(), output_size=self.num_edges)

    def to(self, device: torch.device) -> Block:
        """The same block on another device; prepared structures are dropped."""
        if self.indptr.device == device:
            return self
        moved = {
            name: getattr(self, name).to(device, non_blocking=True)
            for name in (
                "indptr",
                "indices",
                "positions",
                "src_original",
                "dst_original",
                "src_out_degree",
                "dst_in_degree",
            )
        }
        return Block(
            self.relation, self.num_src, self.num_dst, iteration_key=self.iteration_key, **moved
        )
