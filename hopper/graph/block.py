"""What models compute on: the sampled edges of one relation between two frontiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device_copies import to_device
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
    drawn_inverse: Tensor | None = None
    """[edges] float64, one over each edge's probability of being drawn; None: the destination's
    in-degree over its number of sampled edges"""
    equally_likely: bool = True
    """whether all in-edges of a destination had the same probability"""
    drawn: Tensor | None = None
    """[num_dst] int64, sampled in-edges of each destination, where the block has some of them;
    None: it has all"""

    @classmethod
    def of_nodes(cls, node_type: str, original: Tensor, iteration_key: int) -> Block:
        """Nodes of a type as sources without destinations: what row-wise modules are keyed by.

        Parameters
        ----------
        original: [n] int64 original ids.
        """
        none = original.new_empty(0)
        return cls(
            Relation(node_type, "", node_type),
            num_src=original.numel(),
            num_dst=0,
            indptr=original.new_zeros(1),
            indices=none,
            positions=none,
            src_original=original,
            dst_original=none,
            src_out_degree=none,
            dst_in_degree=none,
            iteration_key=iteration_key,
        )

    @classmethod
    def of_edges(
        cls,
        relation: Relation,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int64],
        num_src: int,
    ) -> Block:
        """A pattern of sums, which knows nothing of its nodes.

        Parameters
        ----------
        indptr, indices: as of the attributes of these names.
        """
        return cls.of_pattern(
            relation, torch.from_numpy(indptr), torch.from_numpy(indices), num_src
        )

    @classmethod
    def of_pattern(cls, relation: Relation, indptr: Tensor, indices: Tensor, num_src: int) -> Block:
        """:meth:`of_edges` of tensors, on the device where they are."""
        unknown = indices.new_empty(0)
        return cls(
            relation,
            num_src=num_src,
            num_dst=indptr.numel() - 1,
            indptr=indptr,
            indices=indices,
            positions=unknown,
            src_original=unknown,
            dst_original=unknown,
            src_out_degree=unknown,
            dst_in_degree=unknown,
        )

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.indptr.device

    def edges_on_host(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """``indptr`` and ``indices`` in host memory, where they are there."""
        if self.device.type != "cpu":
            return None
        return self.indptr.numpy(), self.indices.numpy()

    @property
    def num_edges(self) -> int:
        """Number of sampled edges."""
        return int(self.indices.numel())

    @property
    def draws_a_fixed_number(self) -> bool:
        """Whether the probability of an edge is that of node-wise draws, sampled / in_degree."""
        return self.drawn_inverse is None

    def sampled_degree(self) -> Tensor:
        """[num_dst] int64: number of sampled in-edges of each destination, in this block or not."""
        return self.edges_per_destination() if self.drawn is None else self.drawn

    def edges_per_destination(self) -> Tensor:
        """[num_dst] int64: number of each destination's edges in this block."""
        return self.indptr[1:] - self.indptr[:-1]

    def destinations(self) -> Tensor:
        """[edges] int64: the destination row of each edge."""
        rows = torch.arange(self.num_dst, device=self.indptr.device)
        return rows.repeat_interleave(self.edges_per_destination(), output_size=self.num_edges)

    def inverse_probability(self, dtype: torch.dtype) -> Tensor:
        """[edges]: one over the probability with which the sampler draws each edge, in float32 at
        least, whatever rows are in.

        A sum over the sampled in-edges of a destination, each weighted by this, has the sum over
        all of its in-edges as its expectation (Horvitz and Thompson, JASA 47(260), 1952). Where a
        fixed number is drawn node-wise it is ``in_degree / sampled``.
        """
        dtype = at_least_float32(dtype)
        if self.drawn_inverse is not None:
            return self.drawn_inverse.to(dtype)
        by_destination = self.dst_in_degree.double() / self.sampled_degree().clamp(min=1)
        return self._to_edges(by_destination).to(dtype)

    def mean_weights(self, dtype: torch.dtype) -> Tensor:
        """[edges]: the inverse probabilities, scaled to add up to 1 over each destination's edges,
        in float32 at least.

        A weighted mean with these estimates the mean over all in-edges (Hajek's ratio estimator).
        Where edges were equally likely it is the plain mean over those sampled.
        """
        dtype = at_least_float32(dtype)
        if self.equally_likely:
            by_destination = self.sampled_degree().double().reciprocal()
            return self._to_edges(by_destination).to(dtype)
        weights = self.inverse_probability(torch.float64)
        if weights.numel() == 0:
            return weights.to(dtype)
        totals = torch.segment_reduce(weights, "sum", offsets=self.indptr, axis=0, unsafe=True)
        return (weights / self._to_edges(totals)).to(dtype)

    def _to_edges(self, by_destination: Tensor) -> Tensor:
        return by_destination.repeat_interleave(
            self.edges_per_destination(), output_size=self.num_edges
        )

    def to(self, device: torch.device) -> Block:
        """The same block on another device; prepared structures are dropped."""
        if self.indptr.device == device:
            return self
        moved: dict[str, Any] = {
            name: to_device(getattr(self, name), device)
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
        drawn = None if self.drawn is None else to_device(self.drawn, device)
        inverse = None
        if not self.draws_a_fixed_number:
            inverse = to_device(self.inverse_probability(torch.float64), device)
        return Block(
            self.relation,
            self.num_src,
            self.num_dst,
            iteration_key=self.iteration_key,
            drawn_inverse=inverse,
            equally_likely=self.equally_likely,
            drawn=drawn,
            **moved,
        )


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype, or float32 where it has fewer bits."""
    return torch.promote_types(dtype, torch.float32)


@dataclass(frozen=True)
class TypedBlocks:
    """One hop of a graph of several node types: a block per relation, and every type's nodes.

    Of each type the first ``destinations`` rows of its sources are the destinations.

    Attributes
    ----------
    blocks: by relation; one without edges is there like any other.
    sources, destinations: number of nodes by type.
    original: by type, [sources] int64 original ids; may be looked up when asked for.
    iteration_key: uint64 key of (seed, epoch, iteration), as of :class:`Block`.
    stored_as: types that are another under a name of their own: which.
    prepared: what depends on the edges alone, kept for whoever asks again.
    """

    blocks: Mapping[Relation, Block]
    sources: Mapping[str, int]
    destinations: Mapping[str, int]
    original: Mapping[str, Tensor]
    iteration_key: int = 0
    stored_as: Mapping[str, str] = field(default_factory=dict)
    prepared: dict[Any, Any] = field(default_factory=dict)

    def nodes(self, node_type: str, count: int | None = None) -> Block:
        """A type's sources as a block without destinations: what row-wise modules are keyed by.

        Parameters
        ----------
        count: of the first ones; None = all.
        """
        stored = self.stored_as.get(node_type, node_type)
        return Block.of_nodes(stored, self.original[node_type][:count], self.iteration_key)
