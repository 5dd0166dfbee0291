"""Rows that travel to other ranks and whose gradients travel back, by the same plan reversed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from hopper.cluster import Cluster, Exchange
from hopper.run_log import RunLog

Kind = TypeVar("Kind", bound=Hashable)


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
        self._token: Tensor | None = _Send.apply(sent, self)

    def finish(self) -> Tensor:
        """[m, ...]: the rows that came, those of rank 0 first; waits for them.

        What is computed between the exchange's beginning and this call runs while rows travel. On
        the way back it runs while their gradients travel: autograd takes the latest operation
        first, so gradients leave before it, and are waited for behind it.

        Raises
        ------
        DeadlineExceeded, RankLost: names this rank, the operation and the limit.
        """
        # The operations know this exchange; it knows them no more, so nothing outlives them.
        token, self._token = self._token, None
        rows: Tensor = _Receive.apply(token, self)
        return rows

    def start(self, sent: Tensor) -> None:
        """Begin to send."""
        self._under_way = self.cluster.start_exchange(
            sent, self.lengths, self.counts, "partial", self.operation
        )

    def start_back(self, gradients: Tensor) -> None:
        """Begin to send the gradients of received rows back."""
        self._under_way = self.cluster.start_exchange(
            gradients,
            self.counts,
            self.lengths,
            "partial",
            f"{self.operation}: the gradients' way back",
        )

    def take(self, stage_operation: str) -> Tensor:
        """Wait for what was begun last."""
        under_way, self._under_way = self._under_way, None
        assert under_way is not None
        with self.log.stage("sync", operation=stage_operation):
            return under_way.finish()


class KindsExchange(Generic[Kind]):
    """One exchange of rows of several kinds and shapes, begun when made.

    Parameters
    ----------
    sent: by kind, [n, ...], what goes to rank 0 first; the same kinds, in the same order, on every
        rank.
    lengths: of each kind, rows for every rank. counts: of each kind, rows from every rank.
    travels_as: what numbers are rounded to on their way.
    operation: as of :class:`RowExchange`.
    """

    def __init__(
        self,
        cluster: Cluster,
        log: RunLog,
        sent: Mapping[Kind, Tensor],
        lengths: Sequence[Sequence[int]],
        counts: Sequence[Sequence[int]],
        travels_as: torch.dtype,
        operation: str,
    ) -> None:
        self._shapes = {kind: rows.shape[1:] for kind, rows in sent.items()}
        widths = [shape.numel() for shape in self._shapes.values()]
        # Of every rank, the numbers of each kind side by side.
        going, self._coming = (
            [
                [n * width for n, width in zip(side, widths, strict=True)]
                for side in zip(*sides, strict=True)
            ]
            for sides in (lengths, counts)
        )
        self._dtypes = {kind: rows.dtype for kind, rows in sent.items()}
        flat = [
            rows.reshape(-1).split(sizes) if len(widths) > 1 else [rows.reshape(-1)]
            for rows, sizes in zip(sent.values(), zip(*going, strict=True), strict=True)
        ]
        side_by_side = [part for parts in zip(*flat, strict=True) for part in parts]
        together = side_by_side[0] if len(side_by_side) == 1 else torch.cat(side_by_side)
        self._exchange = RowExchange(
            *(cluster, log, together.to(travels_as)),
            *([sum(each) for each in going], [sum(each) for each in self._coming], operation),
        )

    def finish(self) -> dict[Kind, list[Tensor]]:
        """By kind, [n, ...] of every rank; as :meth:`RowExchange.finish`."""
        received = self._exchange.finish()
        # In one piece, so that gradients are put together once.
        pieces = received.split([count for each in self._coming for count in each])
        return {
            kind: [
                part.view(-1, *shape).to(self._dtypes[kind])
                for part in pieces[place :: len(self._shapes)]
            ]
            for place, (kind, shape) in enumerate(self._shapes.items())
        }


class _Send(torch.autograd.Function):
    """Begins to send rows; the way back waits for their gradients."""

    @staticmethod
    def forward(ctx: Any, sent: Tensor, exchange: RowExchange) -> Tensor:
        ctx.exchange = exchange
        exchange.start(sent)
        # It ties what is received to what was sent.
        return sent.new_empty(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.take("gradients of partials"), None


class _Receive(torch.autograd.Function):
    """Waits for the rows of other ranks; the way back begins to send their gradients."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, exchange: RowExchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.take("partials")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None]:
        ctx.exchange.start_back(gradients)
        return gradients.new_empty(0), None
