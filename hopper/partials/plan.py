"""What a rank computes, sends and receives in one iteration, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.device_copies import to_device
from hopper.graph.block import Block
from hopper.ops import weighted_sum
from hopper.partials.wire import Wire


@dataclass
class Sending:
    """Which rows go out for a layer, those for rank 0 first.

    Attributes
    ----------
    lengths: rows for every rank.
    rows: [n] int64, the own row that each is; None where some are partial sums.
    sums: then: destinations are the rows that go out, sources the own rows.
    weights: [edges of sums], 1 where a row goes out as it is.
    """

    lengths: list[int]
    rows: Tensor | None
    sums: Block | None = None
    weights: Tensor | None = None

    def select(self, own: Tensor) -> Tensor:
        """[n, ...]: what goes out, from the own rows [num_own, ...]."""
        if self.rows is not None:
            return own.index_select(0, self.rows)
        assert self.sums is not None
        assert self.weights is not None
        return weighted_sum(self.sums, own, self.weights)


@dataclass
class LayerPlan:
    """One layer's part of a plan.

    Attributes
    ----------
    own: this rank's nodes as sources: what their rows are prepared with.
    block: destinations are this rank's; sources are its own rows and, behind them, what comes from
        rank 0, from rank 1, ...
    weights: [edges], where partial sums are among the sources; None = the layer's own.
    counts: rows from every rank.
    sums_from: the ranks that send partial sums instead of rows.
    """

    own: Block
    block: Block
    weights: Tensor | None
    sending: Sending
    counts: list[int]
    sums_from: list[int]

    def describe(self, wire: Wire) -> dict[str, Any]:
        """For the run's log: this rank's work, and the rows that travel.

        ``row_bytes`` includes the gradients' way back.
        """
        return {
            "own": self.own.num_src,
            "destinations": self.block.num_dst,
            "edges": self.block.num_edges,
            "rows": "projected" if wire.projected else "as read",
            "row_bytes": wire.row_bytes,
            "sent": sum(self.sending.lengths),
            "received": sum(self.counts),
            "sums_from": self.sums_from,
        }


@dataclass
class IterationPlan:
    """A rank's part of one iteration.

    Attributes
    ----------
    nodes: [n] int64 global ids of the nodes whose input rows this rank reads, its roots first.
    roots: how many roots it has.
    layers: in order of computation.
    """

    nodes: NDArray[np.int64]
    roots: int
    layers: list[LayerPlan]

    def to(self, device: torch.device) -> IterationPlan:
        """The same plan with its blocks on another device."""
        if device.type == "cpu":
            return self
        layers = []
        for each in self.layers:
            sending = each.sending
            layers.append(
                LayerPlan(
                    each.own.to(device),
                    each.block.to(device),
                    _to(each.weights, device),
                    Sending(
                        sending.lengths,
                        _to(sending.rows, device),
                        None if sending.sums is None else sending.sums.to(device),
                        _to(sending.weights, device),
                    ),
                    each.counts,
                    each.sums_from,
                )
            )
        return IterationPlan(self.nodes, self.roots, layers)


def _to(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else to_device(tensor, device)
