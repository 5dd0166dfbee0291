"""Exchanges of rows between ranks. Gradients of the received rows travel back the same way."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from hopper.cluster.cluster import Cluster, Exchange
from hopper.ops.linear_map import linear_map
from hopper.timing.run_log import RunLog

Kind = TypeVar("Kind", bound=Hashable)


class RowExchange:
    """One exchange of rows between all ranks. It begins when the object is made.

    Every rank must take part, even with no rows. If one rank's rows require gradients, the rows of
    all ranks must: the gradients return in an exchange of their own.

    Of the rows ``sent``, [n, ...], those for rank 0 come first. ``lengths`` are the numbers of rows
    for every rank, ``counts`` those from every rank.
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
        self.cluster, self.log = cluster, log
        self.lengths, self.counts, self.operation = lengths, counts, operation
        self._under_way: Exchange | None = None
        # In the backward pass these wait for the gradients, and send those of received rows back.
        self._token: Tensor | None = linear_map(
            sent, self._start, lambda _: self._take("gradients of partials")
        )

    def finish(self) -> Tensor:
        """Wait for the rows of all ranks, [m, ...], and return them, those of rank 0 first.

        Work between the start of the exchange and this call overlaps with the transfer. The same
        holds in the backward pass: autograd runs the latest operation first, so it sends the
        gradients before that work and waits for them after it.

        It raises DeadlineExceeded or RankLost, which name this rank, the operation and the limit.
        """
        # The autograd operations refer to this exchange. Dropping the reference to them leaves no
        # cycle that would keep both alive.
        token, self._token = self._token, None
        assert token is not None
        return linear_map(token, lambda _: self._take("partials"), self._start_back)

    def _start(self, sent: Tensor) -> Tensor:
        """Begin to send rows. Return an empty token, which connects the received rows with the sent
        ones in autograd's graph."""
        self._under_way = self.cluster.start_exchange(
            sent, self.lengths, self.counts, "partial", self.operation
        )
        return sent.new_empty(0)

    def _start_back(self, gradients: Tensor) -> Tensor:
        """Begin to send the gradients of received rows back. Return that of the token."""
        operation = f"{self.operation}: the gradients' way back"
        self._under_way = self.cluster.start_exchange(
            gradients, self.counts, self.lengths, "partial", operation
        )
        return gradients.new_empty(0)

    def _take(self, stage_operation: str) -> Tensor:
        """Wait for the transfer that was begun last."""
        under_way, self._under_way = self._under_way, None
        assert under_way is not None
        with self.log.stage("sync", operation=stage_operation):
            return under_way.finish()


class KindsExchange(Generic[Kind]):
    """One exchange of rows of several kinds and shapes in a single message to each rank.

    It begins when the object is made. Every rank names the same kinds in the same order. For each,
    ``sent``, ``lengths`` and ``counts`` are those of a :class:`RowExchange`. Rows are rounded to
    ``travels_as`` for the transfer.
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
        self._forms = {kind: (rows.shape[1:], rows.dtype) for kind, rows in sent.items()}
        widths = [rows.shape[1:].numel() for rows in sent.values()]
        # By rank and kind, how many numbers are sent and received.
        sent_sizes, self._received_sizes = (
            [
                [count * width for count, width in zip(rank_counts, widths, strict=True)]
                for rank_counts in zip(*kind_counts, strict=True)
            ]
            for kind_counts in (lengths, counts)
        )
        by_kind = [
            rows.reshape(-1).split(sizes) if len(sent) > 1 else [rows.reshape(-1)]
            for rows, sizes in zip(sent.values(), zip(*sent_sizes, strict=True), strict=True)
        ]
        pieces = [piece for rank_pieces in zip(*by_kind, strict=True) for piece in rank_pieces]
        message = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
        sent_counts, received_counts = (
            [sum(of_rank) for of_rank in sizes] for sizes in (sent_sizes, self._received_sizes)
        )
        self._exchange = RowExchange(
            cluster, log, message.to(travels_as), sent_counts, received_counts, operation
        )

    def finish(self) -> dict[Kind, list[Tensor]]:
        """Wait for the rows as :meth:`RowExchange.finish`; return by kind those of every rank."""
        received = self._exchange.finish()
        # One split of all rows, so that autograd concatenates their gradients once.
        pieces = received.split([size for sizes in self._received_sizes for size in sizes])
        return {
            kind: [piece.view(-1, *shape).to(dtype) for piece in pieces[index :: len(self._forms)]]
            for index, (kind, (shape, dtype)) in enumerate(self._forms.items())
        }
