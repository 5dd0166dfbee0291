"""What a rank computes, sends and receives in one iteration, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device_copies import to_device
from hopper.graph.block import Block, Edges, Nodes, TypedBlocks
from hopper.graph.schema import Relation
from hopper.micrograph.subgraph import pick_rows
from hopper.ops import edge_sum
from hopper.partials.wire import Kind, Sums, Wires

_Key = TypeVar("_Key", str, Relation)
Weighted = tuple[Edges, Tensor]
"""a pattern of sums, and [edges] weights"""


@dataclass(frozen=True)
class Split:
    """The own rows of a type, split by whether other ranks wait for them.

    Attributes
    ----------
    awaited: [k] int64, ascending: the rows that others wait for, or for sums with them.
    rest: [n - k] int64, ascending: the others.
    """

    awaited: Tensor
    rest: Tensor

    @property
    def places(self) -> tuple[Tensor, Tensor]:
        """Where the rows of both parts are."""
        return self.awaited, self.rest

    def to(self, device: torch.device) -> Split:
        """The same on another device."""
        return Split(to_device(self.awaited, device), to_device(self.rest, device))


@dataclass(frozen=True)
class Outgoing:
    """Which rows of a kind go out, those for rank 0 first.

    Attributes
    ----------
    lengths: rows for every rank.
    rows: [n] int64, the own row that each is, or, of a type that is split and unless input rows
        go out, its place among those that are awaited; of sums none.
    sums: by relation, for partial sums: destinations are all sums, sources the own rows, or those
        that are awaited.
    """

    lengths: list[int]
    rows: Tensor
    sums: Mapping[Relation, Weighted]

    def to(self, device: torch.device) -> Outgoing:
        """The same on another device."""
        sums = {e: (edges.to(device), to_device(w, device)) for e, (edges, w) in self.sums.items()}
        return Outgoing(self.lengths, to_device(self.rows, device), sums)


@dataclass(frozen=True)
class LayerEdges:
    """The edges of a relation into this rank's destinations, whose features it reads.

    Attributes
    ----------
    relation: as it is stored.
    places: [edges] int64: where each has its features, in the relation's CSC.
    indptr: [destinations + 1] int64: whose they are.
    weights: [edges], where others have added some of them up: of messages.
    """

    relation: Relation
    places: NDArray[np.int64]
    indptr: NDArray[np.int64]
    weights: NDArray[Any] | None

    def attach(self, block: Block, rows: Tensor) -> None:
        """Let the block have the features, or, where it has not all edges, their sums.

        Parameters
        ----------
        rows: [edges, dim], on the block's device.
        """
        if self.weights is None:
            block.edge_features = rows
            return
        sums = Edges.from_arrays(self.indptr, np.zeros_like(self.places), 1).to(rows.device)
        weights = to_device(self.weights, rows.device).to(rows.dtype)
        block.edge_sums = edge_sum(sums, rows, weights)


@dataclass(frozen=True)
class LayerPlan:
    """One layer's part of a plan.

    Attributes
    ----------
    own: by type, this rank's nodes as sources: what their rows are prepared with.
    blocks: destinations are this rank's; sources of a type are its own rows and, behind them, those
        that come as the layer reads them, from rank 0, from rank 1, ... Of a relation of a layer
        that does not take all at once there follow what it receives projected, then sums.
    raw: by type whose input rows come, their nodes.
    weights: by relation, [edges], where partial sums come; None = the layer's own.
    more: by type, then, of a layer that takes all relations at once: [sums] int64, the destination
        of each sum that comes.
    outgoing: by kind, what goes out. counts: by kind, rows from every rank.
    splits: by type of which some rows are made before the rest, which these are.
    edges: by relation whose edges' features are read, those that this rank has drawn.
    """

    own: Mapping[str, Nodes]
    blocks: TypedBlocks
    raw: Mapping[str, Nodes]
    weights: Mapping[Relation, Tensor] | None
    more: Mapping[str, Tensor]
    outgoing: Mapping[Kind, Outgoing]
    counts: Mapping[Kind, list[int]]
    splits: Mapping[str, Split]
    edges: Mapping[Relation, LayerEdges] = field(default_factory=dict)

    @property
    def num_edges(self) -> int:
        """What this rank aggregates over."""
        return sum(block.num_edges for block in self.blocks.blocks.values())

    def describe(self, wires: Wires) -> dict[str, Any]:
        """For the run's log: this rank's work, and the rows that travel.

        ``received_bytes`` are those of rows, and of the gradients that go back.
        """
        sums = [counts for kind, counts in self.counts.items() if isinstance(kind, Sums)]
        return {
            "own": sum(nodes.count for nodes in self.own.values()),
            "destinations": sum(self.blocks.destinations.values()),
            "edges": self.num_edges,
            "sent": sum(sum(each.lengths) for each in self.outgoing.values()),
            "received": sum(sum(each) for each in self.counts.values()),
            "received_bytes": sum(
                sum(each) * wires.forms[kind].row_bytes for kind, each in self.counts.items()
            ),
            "sums_from": np.flatnonzero(np.sum(sums, 0)).tolist() if sums else [],
        }

    def to(self, device: torch.device) -> LayerPlan:
        """The same plan on another device."""
        inner = {each: block.to(device) for each, block in self.blocks.blocks.items()}
        weights = None if self.weights is None else _to(self.weights, device)
        return LayerPlan(
            {each: nodes.to(device) for each, nodes in self.own.items()},
            replace(self.blocks, blocks=inner, prepared={}),
            {each: nodes.to(device) for each, nodes in self.raw.items()},
            weights,
            _to(self.more, device),
            {kind: each.to(device) for kind, each in self.outgoing.items()},
            self.counts,
            {name: split.to(device) for name, split in self.splits.items()},
            self.edges,
        )


@dataclass(frozen=True)
class IterationPlan:
    """A rank's part of one iteration.

    Attributes
    ----------
    nodes: by type, [n] int64 global ids of the nodes whose input rows this rank reads; of the
        target its roots first.
    roots: how many roots it has.
    layers: in order of computation.
    """

    nodes: Mapping[str, NDArray[np.int64]]
    roots: int
    layers: list[LayerPlan]

    @cached_property
    def edges(self) -> dict[str, NDArray[np.int64]]:
        """By relation as ``src/rel/dst``, [n] int64, ascending: the edges whose features are read,
        by their places in its CSC."""
        found: dict[str, list[NDArray[np.int64]]] = {}
        for layer in self.layers:
            for own in layer.edges.values():
                found.setdefault(str(own.relation), []).append(own.places)
        return {table: np.unique(np.concatenate(parts)) for table, parts in found.items()}

    def attach(self, features: Mapping[str, Tensor]) -> None:
        """Let blocks have the features of their edges.

        Parameters
        ----------
        features: by relation as ``src/rel/dst``, [n, dim], of :attr:`edges`.
        """
        for layer in self.layers:
            for name, own in layer.edges.items():
                table = str(own.relation)
                rows = pick_rows(features[table], np.searchsorted(self.edges[table], own.places))
                own.attach(layer.blocks.blocks[name], rows)

    @property
    def num_nodes(self) -> int:
        """How many input rows this rank reads."""
        return sum(ids.size for ids in self.nodes.values())

    def to(self, device: torch.device) -> IterationPlan:
        """The same plan with its blocks on another device."""
        if device.type == "cpu":
            return self
        return replace(self, layers=[layer.to(device) for layer in self.layers])


def _to(tensors: Mapping[_Key, Tensor], device: torch.device) -> dict[_Key, Tensor]:
    return {each: to_device(tensor, device) for each, tensor in tensors.items()}
