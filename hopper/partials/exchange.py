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
        self._dtype = next(iter(sent.values())).dtype
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
        received = self._exchange.finish().to(self._dtype)
        # In one piece, so that gradients are put together once.
        pieces = received.split([count for each in self._coming for count in each])
        return {
            kind: [part.view(-1, *shape) for part in pieces[place :: len(self._shapes)]]
            for place, (kind, shape) in enumerate(self._shapes.items())
        }


class _SendRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sent: Tensor, exchange: RowExchange) -> Tensor:
        ctx.exchange = exchange
        return exchange.start(sent)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.send_back(gradients), None
