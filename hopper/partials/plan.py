"""A rank's computations and messages in one iteration, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device.copies import to_device
from hopper.graph.block import Block, Edges, Nodes, TypedBlocks
from hopper.graph.schema import Relation
from hopper.micrograph.subgraph import pick_rows
from hopper.ops import edge_sum
from hopper.partials.requests import Weighted
from hopper.partials.transfer import Kind, LayerTransfer, Sums


@dataclass(frozen=True)
class Outgoing:
    """The rows of a kind that a rank sends, those for rank 0 first."""

    lengths: list[int]
    """number of rows for every rank"""
    rows: Tensor
    """[n] int64, the own rows to send; empty for sums"""
    sums: Mapping[Relation, Weighted]
    """by relation, the edges of partial sums, from the own rows to all sums"""

    def to(self, device: torch.device) -> Outgoing:
        """Return the same on another device."""
        sums = {
            relation: (edges.to(device), to_device(weights, device))
            for relation, (edges, weights) in self.sums.items()
        }
        return Outgoing(self.lengths, to_device(self.rows, device), sums)


@dataclass(frozen=True)
class LayerEdges:
    """The edges of a stored relation into this rank's destinations, if it reads their features."""

    relation: Relation
    places: NDArray[np.int64]
    """[edges], where the relation's CSC has each edge, and so its features"""
    indptr: NDArray[np.int64]
    """[destinations + 1], where each destination's edges begin"""
    weights: NDArray[Any] | None
    """[edges], the weights of messages; None unless other ranks add some of them up"""

    def attach(self, block: Block, rows: Tensor) -> None:
        """Give a block the features of its edges, [edges, dim] on its device, or their sums if it
        lacks some of the edges."""
        if self.weights is None:
            block.edge_features = rows
            return
        sums = Edges.from_arrays(self.indptr, np.zeros_like(self.places), 1).to(rows.device)
        weights = to_device(self.weights, rows.device).to(rows.dtype)
        block.edge_sums = edge_sum(sums, rows, weights)


@dataclass(frozen=True)
class LayerPlan:
    """One layer's part of a plan.

    Sources of a type in the blocks, whose destinations this rank owns, are its own rows, followed
    by the rows that it receives ready to read, from rank 0, from rank 1, and so on. If the layer
    does not take all relations at once, a relation's projected rows and then its sums follow.
    """

    own: Mapping[str, Nodes]
    """by type, this rank's nodes as sources, with which their rows are prepared"""
    blocks: TypedBlocks
    raw: Mapping[str, Nodes]
    """by type whose input rows this rank receives, their nodes"""
    weights: Mapping[Relation, Tensor] | None
    """by relation, [edges], if this rank receives partial sums; None = the layer's own"""
    more: Mapping[str, Tensor]
    """by type, [sums] int64, the destination of each sum that this rank receives, if the layer
    takes all relations at once"""
    outgoing: Mapping[Kind, Outgoing]
    counts: Mapping[Kind, list[int]]
    """by kind, the number of rows from every rank"""
    edges: Mapping[Relation, LayerEdges] = field(default_factory=dict)
    """by relation whose edge features are read, the edges that this rank has drawn"""

    @property
    def num_edges(self) -> int:
        """The number of edges that this rank aggregates over."""
        return sum(block.num_edges for block in self.blocks.blocks.values())

    def describe(self, transfer: LayerTransfer) -> dict[str, Any]:
        """Describe this rank's work and the rows that travel, with their gradients, for the log."""
        sums = [counts for kind, counts in self.counts.items() if isinstance(kind, Sums)]
        return {
            "own": sum(nodes.count for nodes in self.own.values()),
            "destinations": sum(self.blocks.destinations.values()),
            "edges": self.num_edges,
            "sent": sum(sum(outgoing.lengths) for outgoing in self.outgoing.values()),
            "received": sum(sum(counts) for counts in self.counts.values()),
            "received_bytes": sum(
                transfer.layouts[kind].row_bytes * sum(counts)
                for kind, counts in self.counts.items()
            ),
            "sums_from": np.flatnonzero(np.sum(sums, 0)).tolist() if sums else [],
        }

    def to(self, device: torch.device) -> LayerPlan:
        """Return the same plan on another device."""
        blocks = {relation: block.to(device) for relation, block in self.blocks.blocks.items()}
        weights = self.weights and {r: to_device(w, device) for r, w in self.weights.items()}
        return LayerPlan(
            {name: nodes.to(device) for name, nodes in self.own.items()},
            replace(self.blocks, blocks=blocks, prepared={}),
            {name: nodes.to(device) for name, nodes in self.raw.items()},
            weights,
            {name: to_device(ends, device) for name, ends in self.more.items()},
            {kind: outgoing.to(device) for kind, outgoing in self.outgoing.items()},
            self.counts,
            self.edges,
        )


@dataclass(frozen=True)
class IterationPlan:
    """A rank's part of one iteration, with its layers in order of computation."""

    nodes: Mapping[str, NDArray[np.int64]]
    """by type, [n] global ids of the nodes whose input rows this rank reads, the roots first"""
    roots: int
    layers: list[LayerPlan]

    @cached_property
    def edges(self) -> dict[str, NDArray[np.int64]]:
        """The edges whose features are read, by relation as ``src/rel/dst``: [n], ascending, places
        in the relation's CSC."""
        places: dict[str, list[NDArray[np.int64]]] = {}
        for layer in self.layers:
            for layer_edges in layer.edges.values():
                places.setdefault(str(layer_edges.relation), []).append(layer_edges.places)
        return {table: np.unique(np.concatenate(parts)) for table, parts in places.items()}

    def attach(self, features: Mapping[str, Tensor]) -> None:
        """Give the blocks the features [n, dim] of :attr:`edges`."""
        for layer in self.layers:
            for relation, layer_edges in layer.edges.items():
                table = str(layer_edges.relation)
                places = np.searchsorted(self.edges[table], layer_edges.places)
                layer_edges.attach(
                    layer.blocks.blocks[relation], pick_rows(features[table], places)
                )

    @property
    def num_nodes(self) -> int:
        """The number of input rows that this rank reads."""
        return sum(ids.size for ids in self.nodes.values())

    def to(self, device: torch.device) -> IterationPlan:
        """Return the same plan with its blocks on another device."""
        if device.type == "cpu":
            return self
        return replace(self, layers=[layer.to(device) for layer in self.layers])
