"""What models compute on: the sampled edges of one relation between two frontiers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device_copies import to_device
from hopper.errors import RequestError
from hopper.graph.schema import Relation


@dataclass(eq=False)
class Edges:
    """Edges into ``num_dst`` destinations from ``num_src`` sources: what kernels compute on.

    Edges of destination v are ``indptr[v]:indptr[v + 1]``, in an order that is the same wherever
    the edges are, so every kernel that adds along a row adds in the same order wherever it runs.
    """

    num_src: int
    num_dst: int
    indptr: Tensor
    """[num_dst + 1] int64"""
    indices: Tensor
    """[edges] int64, rows of the sources"""
    prepared: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """what a kernel backend prepared for these edges (a transpose, the patterns of its sums)"""

    @classmethod
    def of_arrays(
        cls, indptr: NDArray[np.int64], indices: NDArray[np.int64], num_src: int
    ) -> Edges:
        """Edges in host memory.

        Parameters
        ----------
        indptr, indices: as of the attributes of these names.
        """
        edges = torch.from_numpy(indptr), torch.from_numpy(indices)
        return Edges(num_src, indptr.size - 1, *edges)

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
        """Number of edges."""
        return int(self.indices.numel())

    def edges_per_destination(self) -> Tensor:
        """[num_dst] int64: number of each destination's edges."""
        return self.indptr[1:] - self.indptr[:-1]

    def destinations(self) -> Tensor:
        """[edges] int64: the destination row of each edge."""
        return self.to_edges(torch.arange(self.num_dst, device=self.indptr.device))

    def sampled_degree(self) -> Tensor:
        """[num_dst] int64: number of sampled in-edges of each destination, here or elsewhere."""
        return self.edges_per_destination()

    def to_edges(self, by_destination: Tensor) -> Tensor:
        """[edges]: of each edge, the value [num_dst] of its destination."""
        return by_destination.repeat_interleave(
            self.edges_per_destination(), output_size=self.num_edges
        )

    def to(self, device: torch.device) -> Edges:
        """The same on another device; prepared structures are dropped."""
        edges = to_device(self.indptr, device), to_device(self.indices, device)
        return Edges(self.num_src, self.num_dst, *edges)


@dataclass(eq=False)
class Nodes:
    """Nodes of one type: what is done row by row, dropout above all, is keyed by these.

    Attributes
    ----------
    node_type: as it is stored, where it also goes by other names.
    original: [n] int64 original ids.
    degree: [n] int64 in the full graph under one relation: out-degrees of a block's sources,
        in-degrees of its destinations. Of no relation, none.
    iteration_key: uint64 key of (seed, epoch, iteration), from which dropout keys are derived.
    first_column: of the nodes' rows, where rows are some columns of them.
    """

    node_type: str
    original: Tensor
    degree: Tensor | None
    iteration_key: int = 0
    first_column: int = 0

    @property
    def count(self) -> int:
        """How many they are."""
        return int(self.original.numel())

    def first(self, count: int) -> Nodes:
        """The first ones."""
        degree = None if self.degree is None else self.degree[:count]
        return Nodes(self.node_type, self.original[:count], degree, self.iteration_key)

    def pick(self, places: Tensor) -> Nodes:
        """Some of them; ``places`` [n] int64."""
        degree = None if self.degree is None else self.degree.index_select(0, places)
        original = self.original.index_select(0, places)
        return Nodes(self.node_type, original, degree, self.iteration_key)

    def rekeyed(self, iteration_key: int) -> Self:
        """The same with another key of dropout masks."""
        other = copy.copy(self)
        other.iteration_key = iteration_key
        return other

    def with_columns_from(self, first: int) -> Self:
        """The same, of whose rows the first columns are left out."""
        other = copy.copy(self)
        other.first_column = first
        return other

    def to(self, device: torch.device) -> Nodes:
        """The same on another device."""
        degree = None if self.degree is None else to_device(self.degree, device)
        original = to_device(self.original, device)
        return Nodes(self.node_type, original, degree, self.iteration_key)


@dataclass(eq=False)
class Block(Edges):
    """The sampled in-edges of one relation, and the nodes at both ends.

    Where source and destination type are the same, the first ``num_dst`` source rows *are* the
    destinations, in the same order. A destination's edges are in the order of their draw, which is
    the same whoever samples it. Behind the sources' nodes there may be sources that are none.
    """

    relation: Relation
    positions: Tensor
    """[edges] int64, position of the edge in its destination's canonical neighbour list"""
    src: Nodes
    """the sources, with out-degrees under this relation"""
    dst: Nodes
    """the destinations, with in-degrees under this relation"""
    drawn_inverse: Tensor | None = None
    """[edges] float64, one over each edge's probability of being drawn; None: the destination's
    in-degree over its number of sampled edges"""
    equally_likely: bool = True
    """whether all in-edges of a destination had the same probability"""
    drawn: Tensor | None = None
    """[num_dst] int64, sampled in-edges of each destination, where the block has some of them;
    None: it has all"""
    edge_features: Tensor | None = None
    """[edges, dim], where the model reads them"""
    edge_sums: Tensor | None = None
    """[num_dst, dim], where the block has not all edges: the sum of the features of all of them,
    weighted as the layer weighs messages"""

    @property
    def draws_a_fixed_number(self) -> bool:
        """Whether the probability of an edge is that of node-wise draws, sampled / in_degree."""
        return self.drawn_inverse is None

    def out_degree(self) -> Tensor:
        """[num_src] int64: full-graph out-degrees of the sources under this relation."""
        assert self.src.degree is not None
        return self.src.degree

    def in_degree(self) -> Tensor:
        """[num_dst] int64: full-graph in-degrees of the destinations under this relation."""
        assert self.dst.degree is not None
        return self.dst.degree

    def sampled_degree(self) -> Tensor:
        """See :class:`Edges`."""
        return self.edges_per_destination() if self.drawn is None else self.drawn

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
        by_destination = self.in_degree().double() / self.sampled_degree().clamp(min=1)
        return self.to_edges(by_destination).to(dtype)

    def mean_weights(self, dtype: torch.dtype) -> Tensor:
        """[edges]: the inverse probabilities, scaled to add up to 1 over each destination's edges,
        in float32 at least.

        A weighted mean with these estimates the mean over all in-edges (Hajek's ratio estimator).
        Where edges were equally likely it is the plain mean over those sampled.
        """
        dtype = at_least_float32(dtype)
        if self.equally_likely:
            by_destination = self.sampled_degree().double().reciprocal()
            return self.to_edges(by_destination).to(dtype)
        weights = self.inverse_probability(torch.float64)
        if weights.numel() == 0:
            return weights.to(dtype)
        totals = torch.segment_reduce(weights, "sum", offsets=self.indptr, axis=0, unsafe=True)
        return (weights / self.to_edges(totals)).to(dtype)

    def to_pyg(self) -> Tensor:
        """[2, edges] int64: PyG's ``edge_index``, sources first; a convolution of PyG takes it with
        ``(x, x[:block.num_dst])``."""
        return torch.stack([self.indices, self.destinations()])

    def to_dgl(self) -> Any:
        """A ``DGLBlock`` of the same edges, in the same order.

        Raises
        ------
        RequestError: DGL is not installed.
        """
        try:
            import dgl
        except ImportError as error:
            raise RequestError(
                f"Block.to_dgl: DGL cannot be imported ({error}); install it with: "
                "pip install 'hopper-gnn[dgl]'"
            ) from error
        ends = self.indices.cpu(), self.destinations().cpu()
        block = dgl.create_block(ends, num_src_nodes=self.num_src, num_dst_nodes=self.num_dst)
        return block.to(self.device)

    def rekeyed(self, iteration_key: int) -> Self:
        """The same with another key of dropout masks; what was prepared serves both."""
        other = copy.copy(self)
        other.src, other.dst = self.src.rekeyed(iteration_key), self.dst.rekeyed(iteration_key)
        return other

    def to(self, device: torch.device) -> Block:
        """The same block on another device; prepared structures are dropped."""
        if self.indptr.device == device:
            return self
        inverse = None
        if not self.draws_a_fixed_number:
            inverse = to_device(self.inverse_probability(torch.float64), device)
        return Block(
            self.num_src,
            self.num_dst,
            to_device(self.indptr, device),
            to_device(self.indices, device),
            self.relation,
            to_device(self.positions, device),
            self.src.to(device),
            self.dst.to(device),
            drawn_inverse=inverse,
            equally_likely=self.equally_likely,
            drawn=_moved(self.drawn, device),
            edge_features=_moved(self.edge_features, device),
            edge_sums=_moved(self.edge_sums, device),
        )


def _moved(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else to_device(tensor, device)


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
    nodes: by type, the sources.
    prepared: what depends on the edges alone, kept for whoever asks again.
    """

    blocks: Mapping[Relation, Block]
    sources: Mapping[str, int]
    destinations: Mapping[str, int]
    nodes: Mapping[str, Nodes]
    prepared: dict[Any, Any] = field(default_factory=dict)

    def rekeyed(self, iteration_key: int) -> TypedBlocks:
        """The same with another key of dropout masks; what was prepared serves both."""
        return TypedBlocks(
            {relation: block.rekeyed(iteration_key) for relation, block in self.blocks.items()},
            self.sources,
            self.destinations,
            {name: nodes.rekeyed(iteration_key) for name, nodes in self.nodes.items()},
            self.prepared,
        )
