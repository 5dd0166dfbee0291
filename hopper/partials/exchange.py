"""Rows that travel to other ranks and whose gradients travel back, by the same plan reversed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.cluster import Cluster, Exchange
from hopper.run_log import RunLog


class RowExchange:
    """One exchange of rows between all ranks, begun when made.

    Every rank has to make it, with rows or without, and where one rank's rows require gradients,
    those of all have to: the gradients' way back is an exchange too.

    Parameters
    ----------
    sent: [n, ...], what goes to rank 0 first.
    lengths: rows for every rank. counts: rows from every rank.
    operation: names it in errors.
    """

    def __init__(
        self,
        cluster: Cluster,
        log: RunLog,
        sent: Tensor,
        lengths: Sequence[int],
        counts: Sequence[int],
        operation: str,
    ) -> None:
        self.cluster = cluster
        self.log = log
        self.lengths = lengths
        self.counts = counts
        self.operation = operation
        self._under_way: Exchange | None = None
        self._rows: Tensor = _SendRows.apply(sent, self)

    def finish(self) -> Tensor:
        """[m, ...]: the rows that came, those of rank 0 first; waits for them.

        Raises
        ------
        DeadlineExceeded, RankLost: names this rank, the operation and the limit.
        """
        assert self._under_way is not None
        with self.log.stage("sync", operation="partials"):
            self._under_way.finish()
        self._under_way = None
        return self._rows

    def start(self, sent: Tensor) -> Tensor:
        """Begin to send; the buffer that the rows will be in."""
        self._under_way = self.cluster.start_exchange(
            sent, self.lengths, self.counts, "partial", self.operation
        )
        return self._under_way.received

    def send_back(self, gradients: Tensor) -> Tensor:
        """[n, ...]: the gradients of the rows that were sent."""
        with self.log.stage("sync", operation="gradients of partials"):
            return self.cluster.start_exchange(
                gradients,
                self.counts,
                self.lengths,
                "partial",
                f"{self.operation}: the gradients' way back",
            ).finish()


class _SendRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sent: Tensor, exchange: RowExchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.start(sent)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.send_back(gradients), None
