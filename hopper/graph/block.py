"""Blocks, which models compute on: sampled edges of one relation between two frontiers."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device.copies import to_device
from hopper.errors import RequestError, cannot_import
from hopper.graph.schema import Relation


@dataclass(eq=False)
class Edges:
    """Edges from ``num_src`` sources into ``num_dst`` destinations; kernels compute on these.

    Edges of destination v are ``indptr[v]:indptr[v + 1]``. Their order is the same on every rank,
    so a kernel that adds along a row adds in the same order wherever it runs.
    """

    num_src: int
    num_dst: int
    indptr: Tensor
    """[num_dst + 1] int64"""
    indices: Tensor
    """[edges] int64, rows of the sources"""
    prepared: dict[str, Any] = field(default_factory=dict, kw_only=True)
    """what a kernel backend derived from these edges (a transpose, the patterns of its sums)"""

    @classmethod
    def from_arrays(
        cls, indptr: NDArray[np.int64], indices: NDArray[np.int64], num_src: int
    ) -> Edges:
        """Make edges of two arrays in host memory, which are not copied."""
        edges = torch.from_numpy(indptr), torch.from_numpy(indices)
        return Edges(num_src, indptr.size - 1, *edges)

    @property
    def device(self) -> torch.device:
        """The device that the tensors are on."""
        return self.indptr.device

    def edges_on_host(self) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return ``indptr`` and ``indices`` if they are in host memory, else None."""
        if self.device.type != "cpu":
            return None
        return self.indptr.numpy(), self.indices.numpy()

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return int(self.indices.numel())

    def edges_per_destination(self) -> Tensor:
        """Return [num_dst] int64: number of each destination's edges."""
        return self.indptr[1:] - self.indptr[:-1]

    def destinations(self) -> Tensor:
        """Return [edges] int64: the destination row of each edge."""
        return self.to_edges(torch.arange(self.num_dst, device=self.device))

    def sampled_degree(self) -> Tensor:
        """Return [num_dst] int64: number of each destination's edges on all ranks together."""
        return self.edges_per_destination()

    def to_edges(self, by_destination: Tensor) -> Tensor:
        """Copy values of destinations, [num_dst], to their edges: [edges]."""
        return by_destination.repeat_interleave(
            self.edges_per_destination(), output_size=self.num_edges
        )

    def to(self, device: torch.device) -> Edges:
        """Copy the edges to another device, without what was prepared for them."""
        edges = to_device(self.indptr, device), to_device(self.indices, device)
        return Edges(self.num_src, self.num_dst, *edges)


@dataclass(eq=False)
class Nodes:
    """Nodes of one type; operations on single rows, above all dropout, derive their keys from them.

    ``original`` are [n] int64 original ids of a type of the graph directory.
    """

    node_type: str
    original: Tensor
    degree: Tensor | None
    """[n] int64 degrees in the full graph under one relation: out-degrees of a block's sources,
    in-degrees of its destinations; None where the nodes belong to no relation"""
    iteration_key: int = 0
    """uint64 key of (seed, epoch, iteration), from which dropout keys are derived"""
    first_column: int = 0
    """first column of the nodes' rows that is here, where a rank has some columns"""

    @property
    def count(self) -> int:
        """Number of nodes."""
        return int(self.original.numel())

    def first(self, count: int) -> Nodes:
        """Return the first ``count`` nodes."""
        return self._take(lambda numbers: numbers[:count])

    def pick(self, rows: Tensor) -> Nodes:
        """Return the nodes in some rows, [n] int64, in that order."""
        return self._take(lambda numbers: numbers.index_select(0, rows))

    def with_dropout_key(self, iteration_key: int) -> Self:
        """Return the same nodes with another key of dropout masks."""
        nodes = copy.copy(self)
        nodes.iteration_key = iteration_key
        return nodes

    def with_columns_from(self, first: int) -> Self:
        """Return the same nodes, for rows that leave out the columns before ``first``."""
        nodes = copy.copy(self)
        nodes.first_column = first
        return nodes

    def to(self, device: torch.device) -> Nodes:
        """Copy the nodes to another device."""
        return self._take(lambda numbers: to_device(numbers, device))

    def _take(self, take: Callable[[Tensor], Tensor]) -> Nodes:
        degree = None if self.degree is None else take(self.degree)
        return Nodes(self.node_type, take(self.original), degree, self.iteration_key)


@dataclass(eq=False)
class Block(Edges):
    """The sampled in-edges of one relation, and the nodes at both ends.

    Where source and destination type are the same, the first ``num_dst`` source rows *are* the
    destinations, in the same order. A destination's edges are in the order of their draw, which is
    the same on every rank. There may be more source rows than nodes in ``src``: rows after those of
    the nodes hold partials.
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
    """[num_dst] int64, number of sampled in-edges of each destination, where the block has only
    some of them; None: it has all"""
    edge_features: Tensor | None = None
    """[edges, dim], where the model reads them"""
    edge_sums: Tensor | None = None
    """[num_dst, dim], where the block has only some of the edges: sums of the features of all
    sampled in-edges, weighted as the layer weighs messages"""

    @property
    def draws_a_fixed_number(self) -> bool:
        """Return whether edges are drawn with probability ``sampled / in_degree``, as node-wise."""
        return self.drawn_inverse is None

    def out_degree(self) -> Tensor:
        """Return [num_src] int64: full-graph out-degrees of the sources under this relation."""
        assert self.src.degree is not None
        return self.src.degree

    def in_degree(self) -> Tensor:
        """Return [num_dst] int64: full-graph in-degrees of the destinations under this relation."""
        assert self.dst.degree is not None
        return self.dst.degree

    def sampled_degree(self) -> Tensor:
        """Return [num_dst] int64: number of each destination's sampled in-edges, on all ranks
        together."""
        return self.edges_per_destination() if self.drawn is None else self.drawn

    def inverse_probability(self, dtype: torch.dtype) -> Tensor:
        """Return [edges]: one over the probability with which the sampler draws each edge.

        Weighted by this, the sum over the sampled in-edges of a destination has the sum over all of
        its in-edges as its expectation (Horvitz and Thompson, JASA 47(260), 1952). Where a fixed
        number is drawn node-wise it is ``in_degree / sampled``. The dtype is ``dtype``, but at
        least float32.
        """
        dtype = at_least_float32(dtype)
        if self.drawn_inverse is not None:
            return self.drawn_inverse.to(dtype)
        by_destination = self.in_degree().double() / self.sampled_degree().clamp(min=1)
        return self.to_edges(by_destination).to(dtype)

    def mean_weights(self, dtype: torch.dtype) -> Tensor:
        """Return [edges]: the inverse probabilities, scaled to add up to 1 over each destination's
        edges.

        The mean weighted by these estimates the mean over all in-edges (Hajek's ratio estimator).
        Where edges were equally likely it is the plain mean over the sampled edges. The dtype is
        ``dtype``, but at least float32.
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
        """Return [2, edges] int64: PyG's ``edge_index``, sources first.

        Give it to a PyG convolution together with the rows ``(x, x[:block.num_dst])``.
        """
        return torch.stack([self.indices, self.destinations()])

    def to_dgl(self) -> Any:
        """Convert to a ``DGLBlock`` with the same edges in the same order.

        Raises
        ------
        RequestError: DGL is not installed.
        """
        dgl = load_dgl("Block.to_dgl")
        ends = self.indices.cpu(), self.destinations().cpu()
        block = dgl.create_block(ends, num_src_nodes=self.num_src, num_dst_nodes=self.num_dst)
        return block.to(self.device)

    def with_dropout_key(self, iteration_key: int) -> Self:
        """Return the same block with another key of dropout masks; both share what was prepared."""
        block = copy.copy(self)
        block.src = self.src.with_dropout_key(iteration_key)
        block.dst = self.dst.with_dropout_key(iteration_key)
        return block

    def to(self, device: torch.device) -> Block:
        """Copy the block to another device, without what was prepared for it."""
        if self.indptr.device == device:
            return self
        inverse = None if self.draws_a_fixed_number else self.inverse_probability(torch.float64)
        edges, positions = super().to(device), to_device(self.positions, device)
        block = Block(
            edges.num_src,
            edges.num_dst,
            edges.indptr,
            edges.indices,
            self.relation,
            positions,
            self.src.to(device),
            self.dst.to(device),
            equally_likely=self.equally_likely,
        )
        optional = self.drawn, self.edge_features, self.edge_sums
        block.drawn_inverse, block.drawn, block.edge_features, block.edge_sums = (
            None if tensor is None else to_device(tensor, device) for tensor in (inverse, *optional)
        )
        return block


def load_dgl(what: str) -> Any:
    """Import DGL for ``what`` needs it; a RequestError tells that it is not installed."""
    os.environ.setdefault("DGLBACKEND", "pytorch")
    try:
        import dgl
    except ImportError as error:
        raise RequestError(cannot_import(what, "dgl", error)) from error
    return dgl


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return ``dtype``, or float32 if ``dtype`` has fewer bits."""
    return torch.promote_types(dtype, torch.float32)


@dataclass(frozen=True)
class TypedBlocks:
    """One hop of a graph: a block for each relation, those without edges included, and the sources
    of each node type.

    The first ``destinations[t]`` of ``sources[t]`` rows of a node type t are its destinations.
    """

    blocks: Mapping[Relation, Block]
    sources: Mapping[str, int]
    destinations: Mapping[str, int]
    nodes: Mapping[str, Nodes]
    prepared: dict[Any, Any] = field(default_factory=dict)
    """what was derived from the edges alone, kept for later calls"""

    def with_dropout_key(self, iteration_key: int) -> TypedBlocks:
        """Return the same hop with another key of dropout masks; both share what was prepared."""
        blocks = {name: of.with_dropout_key(iteration_key) for name, of in self.blocks.items()}
        nodes = {name: of.with_dropout_key(iteration_key) for name, of in self.nodes.items()}
        return replace(self, blocks=blocks, nodes=nodes)

    def to_dgl(self) -> Any:
        """Convert to a ``DGLBlock`` of all types and relations, also those without nodes or edges.

        Its nodes have their original ids as ``dgl.NID``.

        Raises
        ------
        RequestError: DGL is not installed.
        """
        dgl = load_dgl("TypedBlocks.to_dgl")
        edges = {
            tuple(relation): (block.indices, block.destinations())
            for relation, block in self.blocks.items()
        }
        graph = dgl.create_block(edges, dict(self.sources), dict(self.destinations))
        for name, nodes in self.nodes.items():
            ids = torch.as_tensor(nodes.original)
            graph.srcnodes[name].data[dgl.NID] = ids
            graph.dstnodes[name].data[dgl.NID] = ids[: self.destinations[name]]
        return graph
