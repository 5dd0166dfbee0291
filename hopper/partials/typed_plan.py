"""What a rank computes, sends and receives in one iteration on a graph of several node types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device_copies import to_device
from hopper.graph.block import Block, TypedBlocks
from hopper.graph.schema import Relation


@dataclass(frozen=True)
class SumsOut:
    """Partial sums over all relations that this rank makes for others.

    Attributes
    ----------
    blocks: by relation, its edges: destinations are all sums, those for rank 0 first, sources this
        rank's nodes. weights: by relation, [edges].
    lengths: sums for every rank.
    """

    blocks: Mapping[Relation, Block]
    weights: Mapping[Relation, Tensor]
    lengths: list[int]

    def to(self, device: torch.device) -> SumsOut:
        """The same on another device."""
        return SumsOut(
            {each: block.to(device) for each, block in self.blocks.items()},
            {each: to_device(own, device) for each, own in self.weights.items()},
            self.lengths,
        )


@dataclass(frozen=True)
class SumsIn:
    """Partial sums that come.

    Attributes
    ----------
    counts: from every rank.
    places: by type, [n] int64 rows among those received, and [n] int64 the destinations that they
        are of.
    weights: by relation that the layer reads, [edges] of the edges that are left in its block.
    """

    counts: list[int]
    places: Mapping[str, tuple[Tensor, Tensor]]
    weights: Mapping[Relation, Tensor]

    def to(self, device: torch.device) -> SumsIn:
        """The same on another device."""
        places = {
            each: (to_device(a, device), to_device(b, device))
            for each, (a, b) in self.places.items()
        }
        weights = {each: to_device(own, device) for each, own in self.weights.items()}
        return SumsIn(self.counts, places, weights)


@dataclass(frozen=True)
class TypedLayerPlan:
    """One layer's part of a plan; types are in canonical order wherever they stand side by side.

    Attributes
    ----------
    own: by type, this rank's nodes as sources: what their rows are prepared with.
    blocks: destinations are this rank's; sources of a type are its own rows and, behind them, what
        comes from rank 0, from rank 1, ...
    chosen: [n] int64, which of its own rows, all types side by side, go out, those for rank 0
        first.
    lengths, counts: rows for, and from, every rank.
    arrived: by type, [m] int64, its rows among all those received.
    sums_out, sums_in: of layers that add their relations up; None for others.
    """

    own: Mapping[str, Block]
    blocks: TypedBlocks
    chosen: Tensor
    lengths: list[int]
    counts: list[int]
    arrived: Mapping[str, Tensor]
    sums_out: SumsOut | None
    sums_in: SumsIn | None

    def describe(self, row_bytes: int) -> dict[str, Any]:
        """For the run's log: this rank's work, and the rows and sums that travel.

        Parameters
        ----------
        row_bytes: of a row and of its gradient.
        """
        sums = (self.sums_out.lengths, self.sums_in.counts) if self.sums_out and self.sums_in else (
            [], []
        )  # fmt: skip
        return {
            "own": sum(block.num_src for block in self.own.values()),
            "destinations": sum(self.blocks.destinations.values()),
            "edges": sum(block.num_edges for block in self.blocks.blocks.values()),
            "rows": "as read",
            "row_bytes": row_bytes,
            "sent": sum(self.lengths) + sum(sums[0]),
            "received": sum(self.counts) + sum(sums[1]),
            "sums_from": np.flatnonzero(sums[1]).tolist(),
        }

    def to(self, device: torch.device) -> TypedLayerPlan:
        """The same plan on another device."""
        inner = {each: block.to(device) for each, block in self.blocks.blocks.items()}
        return TypedLayerPlan(
            {each: block.to(device) for each, block in self.own.items()},
            replace(self.blocks, blocks=inner, prepared={}),
            to_device(self.chosen, device),
            self.lengths,
            self.counts,
            {each: to_device(rows, device) for each, rows in self.arrived.items()},
            None if self.sums_out is None else self.sums_out.to(device),
            None if self.sums_in is None else self.sums_in.to(device),
        )


@dataclass(frozen=True)
class TypedPlan:
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
    layers: list[TypedLayerPlan]

    def to(self, device: torch.device) -> TypedPlan:
        """The same plan with its blocks on another device."""
        if device.type == "cpu":
            return self
        return replace(self, layers=[layer.to(device) for layer in self.layers])
