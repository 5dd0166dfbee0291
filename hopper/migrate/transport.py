"""Passing packed models from rank to rank."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hopper.cluster import Cluster
from hopper.errors import ClusterError
from hopper.migrate.schedule import Move
from hopper.run_log import RunLog
from hopper.traffic import Cause

_HEADER_WORDS = 4
_TAG_HEADER = 1
_TAG_BODY = 2


class Cargo(NamedTuple):
    """A model on its way, and the buffer that it is sent from or received into."""

    move: Move
    buffer: Tensor


class Transport:
    """Moves models between time steps, each with a header that says what comes.

    The header (epoch, iteration, time step, model) travels ahead of the body: waiting for it is
    time lost to a slower rank and counted as ``wait``; the bodies' transfer is ``migrate``. A
    header that does not fit ends the run instead of training the wrong model.

    All directions are under way at once, so that a ring of blocking sends cannot form. Several
    models between the same two ranks travel in order of model.
    """

    def __init__(self, cluster: Cluster, log: RunLog, cause: Cause) -> None:
        self._cluster = cluster
        self._log = log
        self._cause = cause

    def exchange(
        self, moment: tuple[int, int, int], leaving: Sequence[Cargo], coming: Sequence[Cargo]
    ) -> None:
        """Send the models that leave after a time step, receive those due before the next.

        Parameters
        ----------
        moment: epoch, iteration and the time step that comes.
        leaving, coming: in order of model; may be empty.

        Raises
        ------
        DeadlineExceeded, RankLost: names this rank, the operation and the limit.
        ClusterError: what arrived is not what is due.
        """
        if not leaving and not coming:
            return
        sent = [torch.tensor([*moment, each.move.model]) for each in leaving]
        arrived = [torch.empty(_HEADER_WORDS, dtype=torch.int64) for _ in coming]
        messages = self._cluster.messages
        with self._cluster.watched(_describe(moment[2], leaving, coming)):
            with self._log.stage("wait", operation="migrate"):
                headers = list(zip(leaving, sent, strict=True))
                expected = list(zip(coming, arrived, strict=True))
                self._wait(
                    [messages.isend(h, each.move.rank, tag=_TAG_HEADER) for each, h in headers]
                    + [messages.irecv(h, each.move.rank, tag=_TAG_HEADER) for each, h in expected]
                )
            for each, header in expected:
                self._check(header, (*moment, each.move.model), each.move.rank)
            size = sum(each.buffer.nbytes for each in leaving)
            models = [each.move.model for each in leaving]
            with self._log.stage("migrate", models=models, bytes=size):
                bodies = [_as(each, self._cluster.outgoing(each.buffer)) for each in leaving]
                landing = [_as(each, self._cluster.outgoing(each.buffer)) for each in coming]
                self._wait(self._start(bodies, landing))
                for each, landed in zip(coming, landing, strict=True):
                    if landed.buffer is not each.buffer:
                        each.buffer.copy_(landed.buffer)
        for each, header in headers:
            self._cluster.count_message("control", each.move.rank, header.nbytes)
            self._cluster.count_message(self._cause, each.move.rank, each.buffer.nbytes)

    def _check(self, header: Tensor, due: tuple[int, int, int, int], rank: int) -> None:
        if tuple(header.tolist()) != due:
            raise ClusterError(
                f"rank {self._cluster.rank}: expected (epoch, iteration, time step, model) "
                f"{due} from rank {rank}, got {tuple(header.tolist())}"
            )

    def _start(self, leaving: Sequence[Cargo], coming: Sequence[Cargo]) -> list[dist.Work | None]:
        messages = self._cluster.messages
        if all(each.buffer.device.type == "cpu" for each in (*leaving, *coming)):
            return [
                messages.isend(each.buffer, each.move.rank, tag=_TAG_BODY) for each in leaving
            ] + [messages.irecv(each.buffer, each.move.rank, tag=_TAG_BODY) for each in coming]
        # NCCL pairs the two directions only when they are issued as one batch.
        return list(
            dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, each.buffer, each.move.rank) for each in leaving]
                + [dist.P2POp(dist.irecv, each.buffer, each.move.rank) for each in coming]
            )
        )

    def _wait(self, requests: Sequence[dist.Work | None]) -> None:
        for request in requests:
            if request is not None:
                request.wait(timedelta(seconds=self._cluster.timeout))


def _as(cargo: Cargo, buffer: Tensor) -> Cargo:
    return cargo._replace(buffer=buffer)


def _describe(step: int, leaving: Sequence[Cargo], coming: Sequence[Cargo]) -> str:
    parts = [f"sending model {each.move.model} to rank {each.move.rank}" for each in leaving]
    parts += [f"receiving model {each.move.model} from rank {each.move.rank}" for each in coming]
    return f"before time step {step}: {', '.join(parts)}"


def hand_out(cluster: Cluster, tensor: Tensor, owner: int, operation: str) -> None:
    """Give every rank what one rank has in a tensor; in place, and every rank has to call it.

    Raises
    ------
    ClusterError: a rank was lost, or a deadline passed; names the operation.
    """
    if cluster.rank != owner:
        tensor.zero_()
    cluster.all_reduce(tensor, "model", operation)
