"""Sends packed models from rank to rank."""

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
    """A moving model, and the buffer that it is sent from or received into."""

    move: Move
    buffer: Tensor


class Transport:
    """Moves models between time steps, each with a header that identifies it.

    The header (epoch, iteration, time step, model) is sent before the body. Waiting for it is time
    lost to a slower rank and counts as ``wait``. The transfer of the bodies counts as ``migrate``.
    An unexpected header ends the run, since the wrong model would be trained otherwise.

    All sends and receives run at once, so ranks cannot block each other in a ring. Several models
    between the same two ranks are sent in order of model.
    """

    def __init__(self, cluster: Cluster, log: RunLog, cause: Cause) -> None:
        self._cluster = cluster
        self._log = log
        self._cause = cause

    def exchange(
        self, moment: tuple[int, int, int], leaving: Sequence[Cargo], arriving: Sequence[Cargo]
    ) -> None:
        """Send the models that leave after a time step, and receive those due before the next.

        Parameters
        ----------
        moment: epoch, iteration and the coming time step.
        leaving, arriving: in order of model; may be empty.

        Raises
        ------
        DeadlineExceeded, RankLost: names this rank, the operation and the limit.
        ClusterError: another model arrived than the one that is due.
        """
        if not leaving and not arriving:
            return
        sent = [torch.tensor([*moment, cargo.move.model]) for cargo in leaving]
        received = [torch.empty(_HEADER_WORDS, dtype=torch.int64) for _ in arriving]
        messages = self._cluster.messages
        with self._cluster.explain_failures(_describe(moment[2], leaving, arriving)):
            with self._log.stage("wait", operation="migrate"):
                headers = list(zip(leaving, sent, strict=True))
                expected = list(zip(arriving, received, strict=True))
                self._wait(
                    [messages.isend(h, cargo.move.rank, tag=_TAG_HEADER) for cargo, h in headers]
                    + [messages.irecv(h, cargo.move.rank, tag=_TAG_HEADER) for cargo, h in expected]
                )
            for cargo, header in expected:
                self._check(header, (*moment, cargo.move.model), cargo.move.rank)
            size = sum(cargo.buffer.nbytes for cargo in leaving)
            models = [cargo.move.model for cargo in leaving]
            with self._log.stage("migrate", models=models, bytes=size):
                bodies = [self._with_outgoing_buffer(cargo) for cargo in leaving]
                landing = [self._with_outgoing_buffer(cargo) for cargo in arriving]
                self._wait(self._start(bodies, landing))
                for cargo, landed in zip(arriving, landing, strict=True):
                    if landed.buffer is not cargo.buffer:
                        cargo.buffer.copy_(landed.buffer)
        for cargo, header in headers:
            self._cluster.count_message("control", cargo.move.rank, header.nbytes)
            self._cluster.count_message(self._cause, cargo.move.rank, cargo.buffer.nbytes)

    def _with_outgoing_buffer(self, cargo: Cargo) -> Cargo:
        """Replace the buffer by one that messages can be sent from."""
        return cargo._replace(buffer=self._cluster.copy_for_sending(cargo.buffer))

    def _check(self, header: Tensor, due: tuple[int, int, int, int], rank: int) -> None:
        if tuple(header.tolist()) != due:
            raise ClusterError(
                f"rank {self._cluster.rank}: expected (epoch, iteration, time step, model) "
                f"{due} from rank {rank}, got {tuple(header.tolist())}"
            )

    def _start(self, leaving: Sequence[Cargo], arriving: Sequence[Cargo]) -> list[dist.Work | None]:
        messages = self._cluster.messages
        if all(cargo.buffer.device.type == "cpu" for cargo in (*leaving, *arriving)):
            return [
                messages.isend(cargo.buffer, cargo.move.rank, tag=_TAG_BODY) for cargo in leaving
            ] + [messages.irecv(cargo.buffer, cargo.move.rank, tag=_TAG_BODY) for cargo in arriving]
        # NCCL matches sends and receives only if they are issued as one batch.
        return list(
            dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, cargo.buffer, cargo.move.rank) for cargo in leaving]
                + [dist.P2POp(dist.irecv, cargo.buffer, cargo.move.rank) for cargo in arriving]
            )
        )

    def _wait(self, requests: Sequence[dist.Work | None]) -> None:
        for request in requests:
            if request is not None:
                request.wait(timedelta(seconds=self._cluster.timeout))


def _describe(step: int, leaving: Sequence[Cargo], arriving: Sequence[Cargo]) -> str:
    parts = [f"sending model {move.model} to rank {move.rank}" for move, _ in leaving]
    parts += [f"receiving model {move.model} from rank {move.rank}" for move, _ in arriving]
    return f"before time step {step}: {', '.join(parts)}"


def hand_out(cluster: Cluster, tensor: Tensor, owner: int, operation: str) -> None:
    """Copy one rank's tensor to all ranks, in place. Every rank must call this.

    Parameters
    ----------
    owner: the rank whose tensor is copied.
    operation: name of the operation, for errors.

    Raises
    ------
    ClusterError: a rank was lost, or a deadline passed; names the operation.
    """
    if cluster.rank != owner:
        tensor.zero_()
    cluster.all_reduce(tensor, "model", operation)
