"""Models that move from rank to rank between time steps (HopGNN, section 5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from hopper.cluster.cluster import Cluster
from hopper.cluster.traffic import Cause
from hopper.errors import ClusterError
from hopper.migrate.flat_model import FlatModel
from hopper.migrate.schedule import Move, Visit
from hopper.timing.run_log import RunLog

_HEADER_WORDS, _TAG_HEADER, _TAG_BODY = 4, 1, 2
_LOOK_SECONDS: Final = 1.0
"""How long a rank waits before it looks whether another rank's wait has failed."""


class ReplicaBuffers:
    """The buffers of the models on a rank, and the module that computes with one of them at a time.

    With synchronous replicas, every model has the parameters of this rank's replica at the start of
    an iteration. So a model can start on any rank, and it is enough to move its gradients. An
    independent model has buffers of its own on every rank, and starts and ends at home.

    Parameters
    ----------
    packed: this rank's replica.
    moves_parameters: whether a model's buffer holds its parameters too.

    Attributes
    ----------
    present: by model that is on this rank, its buffer.
    spare: buffers whose content is no longer needed.
    """

    def __init__(self, packed: FlatModel, moves_parameters: bool) -> None:
        self._packed = packed
        self._shape = packed.buffer if moves_parameters else packed.accumulated
        self._count = packed.parameters.numel() if moves_parameters else 0
        self.present: dict[int, Tensor] = {}
        self.spare: list[Tensor] = []

    def start(self, models: Sequence[int]) -> None:
        """Let models start here, with the replica's parameters and zero gradients."""
        for model in models:
            buffer = self.empty()
            buffer[: self._count].copy_(self._packed.parameters[: self._count])
            buffer[self._count :].zero_()
            self.present[model] = buffer

    def empty(self) -> Tensor:
        """Return an uninitialised buffer to receive a model into."""
        return self.spare.pop() if self.spare else torch.empty_like(self._shape)

    def accumulated_in(self, buffer: Tensor) -> Tensor:
        """Return a view of the part of a model's buffer that holds its gradients and loss."""
        return buffer[self._count :]

    @contextmanager
    def load(self, model: int) -> Iterator[FlatModel]:
        """Let the replica's module be a model during the block, and accumulate in its buffer."""
        buffer = self.present[model]
        parameters = buffer[: self._count] if self._count else self._packed.parameters
        with self._packed.swap_in(parameters, self.accumulated_in(buffer)):
            yield self._packed

    def reduce(self) -> None:
        """Add the gradients and losses of all models here to the replica, in order of model."""
        for model in sorted(self.present):
            buffer = self.present.pop(model)
            self._packed.accumulated += self.accumulated_in(buffer)
            self.spare.append(buffer)


class Transfer(NamedTuple):
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
        self._cluster, self._log, self._cause = cluster, log, cause

    def move_models(
        self,
        buffers: Mapping[int, ReplicaBuffers],
        moment: tuple[int, int, int],
        before: Visit,
        now: Visit,
        *,
        gradients_only: bool = False,
    ) -> None:
        """Send the models that leave after one time step, and receive those due before the next.

        Parameters
        ----------
        buffers: by model; models of the same shape may share one.
        moment: epoch, iteration and the coming time step.
        before, now: this rank's visits at the last and at the coming time step.
        gradients_only: whether models go to the rank with their own parameters, so that only
            gradients and loss travel.

        Raises
        ------
        As :meth:`exchange`.
        """

        def to_move(move: Move, buffer: Tensor) -> Transfer:
            part = buffers[move.model].accumulated_in(buffer) if gradients_only else buffer
            return Transfer(move, part)

        leaving = {move: buffers[move.model].present.pop(move.model) for move in before.departures}
        arriving = {move: buffers[move.model].empty() for move in now.arrivals}
        sides = ([to_move(*item) for item in side.items()] for side in (leaving, arriving))
        self.exchange(moment, *sides)
        for move, buffer in leaving.items():
            buffers[move.model].spare.append(buffer)
        for move, buffer in arriving.items():
            buffers[move.model].present[move.model] = buffer

    def exchange(
        self,
        moment: tuple[int, int, int],
        leaving: Sequence[Transfer],
        arriving: Sequence[Transfer],
    ) -> None:
        """Send what leaves after a time step, and receive what is due before the next.

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
        sent = [torch.tensor([*moment, model]) for (model, _), _ in leaving]
        received = [torch.empty(_HEADER_WORDS, dtype=torch.int64) for _ in arriving]
        messages, copy = self._cluster.messages, self._cluster.copy_for_sending
        with self._cluster.explain_failures(_describe(moment[2], leaving, arriving)):
            headers = list(zip(leaving, sent, strict=True))
            expected = list(zip(arriving, received, strict=True))
            with self._log.stage("wait", operation="migrate"):
                works = [messages.isend(h, move.rank, tag=_TAG_HEADER) for (move, _), h in headers]
                works += [
                    messages.irecv(h, move.rank, tag=_TAG_HEADER) for (move, _), h in expected
                ]
                self._wait(works)
            for (move, _), header in expected:
                found, due = tuple(header.tolist()), (*moment, move.model)
                if found != due:
                    raise ClusterError(
                        f"rank {self._cluster.rank}: expected (epoch, iteration, time step, model) "
                        f"{due} from rank {move.rank}, got {found}"
                    )
            size = sum(buffer.nbytes for _, buffer in leaving)
            with self._log.stage("migrate", models=[m.model for m, _ in leaving], bytes=size):
                bodies = [Transfer(move, copy(buffer)) for move, buffer in leaving]
                landing = [Transfer(move, copy(buffer)) for move, buffer in arriving]
                self._wait(self._start(bodies, landing))
                for (_, buffer), (_, landed) in zip(arriving, landing, strict=True):
                    if landed is not buffer:
                        buffer.copy_(landed)
        for (move, buffer), header in headers:
            self._cluster.count_message("control", move.rank, header.nbytes)
            self._cluster.count_message(self._cause, move.rank, buffer.nbytes)

    def _start(
        self, leaving: Sequence[Transfer], arriving: Sequence[Transfer]
    ) -> list[dist.Work | None]:
        messages = self._cluster.messages
        if all(buffer.device.type == "cpu" for _, buffer in (*leaving, *arriving)):
            works = [messages.isend(buffer, to.rank, tag=_TAG_BODY) for to, buffer in leaving]
            return works + [messages.irecv(b, of.rank, tag=_TAG_BODY) for of, b in arriving]
        # NCCL matches sends and receives only if they are issued as one batch.
        return list(
            dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, buffer, move.rank) for move, buffer in leaving]
                + [dist.P2POp(dist.irecv, buffer, move.rank) for move, buffer in arriving]
            )
        )

    def _wait(self, works: Sequence[dist.Work | None]) -> None:
        """Wait for messages, and look meanwhile whether another rank's wait has failed."""
        cluster, ended = self._cluster, Future[None]()

        def wait() -> None:
            try:
                for work in works:
                    if work is not None:
                        work.wait(timedelta(seconds=cluster.timeout))
                ended.set_result(None)
            except BaseException as error:
                ended.set_exception(error)

        if cluster.store is None or not (cluster.device.type == "cpu" or cluster.through_host):
            wait()
            return ended.result()
        # Gloo closes all connections if a wait for one message passes its limit. So the wait has
        # the whole limit, in a thread of its own.
        Thread(target=wait, name="migration", daemon=True).start()
        while True:
            try:
                return ended.result(_LOOK_SECONDS)
            except TimeoutError:
                if ended.done():
                    raise
            if cluster.store.has_failures():
                raise RuntimeError("another rank's wait failed")


def _describe(step: int, leaving: Sequence[Transfer], arriving: Sequence[Transfer]) -> str:
    parts = [f"sending model {move.model} to rank {move.rank}" for move, _ in leaving]
    parts += [f"receiving model {move.model} from rank {move.rank}" for move, _ in arriving]
    return f"before time step {step}: {', '.join(parts)}"


def broadcast(cluster: Cluster, tensor: Tensor, owner: int, operation: str) -> None:
    """Copy one rank's tensor to all ranks, in place. Every rank must call this.

    Parameters
    ----------
    owner: the rank whose tensor is copied.
    operation: name of the operation, for errors.

    Raises
    ------
    DeadlineExceeded, RankLost: names this rank, the operation and the limit.
    """
    if cluster.world == 1:
        return
    sent = cluster.copy_for_sending(tensor)
    with cluster.explain_failures(operation):
        work = cluster.messages.broadcast(sent, owner, async_op=True)
    cluster.wait(work, operation)
    if sent is not tensor:
        tensor.copy_(sent)
    # Gloo sends along a binomial tree: who has the tensor sends it half as far each time.
    place, distance = (cluster.rank - owner) % cluster.world, 1
    while distance < cluster.world:
        distance *= 2
    while distance > 1:
        distance //= 2
        if place % (2 * distance) == 0 and place + distance < cluster.world:
            receiver = (cluster.rank + distance) % cluster.world
            cluster.count_message("model", receiver, tensor.nbytes)
