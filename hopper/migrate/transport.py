"""Passing a packed model around the ring of ranks."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from hopper.cluster import Cluster
from hopper.errors import ClusterError
from hopper.run_log import RunLog
from hopper.traffic import Cause

_HEADER_WORDS = 4
_TAG_HEADER = 1
_TAG_BODY = 2


class RingTransport:
    """Moves buffers between ranks, with a header that says what comes.

    The header (epoch, iteration, time step, model) travels ahead of the body: waiting for it is
    time lost to a slower rank and counted as ``wait``; the body's transfer is ``migrate``. A header
    that does not fit ends the run instead of training the wrong model.

    Both directions are under way at once, so that a ring of blocking sends cannot form.
    """

    def __init__(self, cluster: Cluster, log: RunLog) -> None:
        self._cluster = cluster
        self._log = log
        self._incoming: Tensor | None = None

    def swap(
        self,
        buffer: Tensor,
        pass_to: int,
        receive_from: int,
        sent_header: tuple[int, int, int, int],
        due_header: tuple[int, int, int, int],
        cause: Cause,
    ) -> None:
        """Send ``buffer`` to a rank and replace its content with what another rank sends.

        Raises
        ------
        DeadlineExceeded, RankLost: names this rank, the operation and the limit.
        ClusterError: what arrived is not what is due.
        """
        name = (
            f"time step {sent_header[2]}: sending model {sent_header[3]} to rank {pass_to} and "
            f"receiving model {due_header[3]} from rank {receive_from}"
        )
        header = torch.tensor(sent_header, dtype=torch.int64)
        arrived = torch.empty(_HEADER_WORDS, dtype=torch.int64)
        incoming = self._buffer_like(buffer)
        with self._cluster.watched(name):
            with self._log.stage("wait", operation="migrate"):
                requests = [
                    dist.isend(header, pass_to, tag=_TAG_HEADER),
                    dist.irecv(arrived, receive_from, tag=_TAG_HEADER),
                ]
                self._wait(requests)
            if tuple(arrived.tolist()) != due_header:
                raise ClusterError(
                    f"rank {self._cluster.rank}: expected (epoch, iteration, time step, model) "
                    f"{due_header} from rank {receive_from}, got {tuple(arrived.tolist())}"
                )
            with self._log.stage("migrate", model=sent_header[3], bytes=buffer.nbytes):
                self._wait(self._exchange(buffer, incoming, pass_to, receive_from))
                buffer.copy_(incoming)
        self._cluster.count_message("control", pass_to, header.nbytes)
        self._cluster.count_message(cause, pass_to, buffer.nbytes)

    def _exchange(
        self, buffer: Tensor, incoming: Tensor, pass_to: int, receive_from: int
    ) -> list[dist.Work | None]:
        if buffer.device.type == "cpu":
            return [
                dist.isend(buffer, pass_to, tag=_TAG_BODY),
                dist.irecv(incoming, receive_from, tag=_TAG_BODY),
            ]
        # NCCL pairs the two directions only when they are issued as one batch.
        return list(
            dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, buffer, pass_to),
                    dist.P2POp(dist.irecv, incoming, receive_from),
                ]
            )
        )

    def _wait(self, requests: list[dist.Work | None]) -> None:
        for request in requests:
            if request is not None:
                request.wait(timedelta(seconds=self._cluster.timeout))

    def _buffer_like(self, buffer: Tensor) -> Tensor:
        if self._incoming is None or self._incoming.shape != buffer.shape:
            self._incoming = torch.empty_like(buffer)
        return self._incoming
