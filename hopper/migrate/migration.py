"""Models that move from rank to rank between time steps (HopGNN, section 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import pairwise
from threading import Thread
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from hopper.cluster.cluster import Cluster
from hopper.cluster.traffic import Cause
from hopper.errors import ClusterError
from hopper.micrograph.route import GlobalBatch
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

    A buffer has gradients and loss, behind the parameters if these move too. ``present`` are those
    of the models that are on this rank, and the content of ``spare`` ones is no longer needed.
    """

    def __init__(self, packed: FlatModel, moves_parameters: bool) -> None:
        self._packed = packed
        self._shape = packed.buffer if moves_parameters else packed.accumulated
        self._count = packed.parameters.numel() if moves_parameters else 0
        self.present: dict[int, Tensor] = {}
        self.spare: list[Tensor] = []

    def start(self, model: int) -> None:
        """Let a model start here, with the replica's parameters and zero gradients."""
        buffer = self.present[model] = self.empty()
        buffer[: self._count].copy_(self._packed.parameters[: self._count])
        self.accumulated_in(buffer).zero_()

    def empty(self) -> Tensor:
        """Return an uninitialised buffer to receive a model into."""
        return self.spare.pop() if self.spare else torch.empty_like(self._shape)

    def accumulated_in(self, buffer: Tensor) -> Tensor:
        """Return a view of the part of a model's buffer that holds its gradients and loss."""
        return buffer[self._count :]

    @property
    def moves_parameters(self) -> bool:
        """Whether models bring parameters of their own."""
        return self._count > 0

    @contextmanager
    def load(self, model: int) -> Iterator[FlatModel]:
        """Let the replica's module be a model during the block, and accumulate in its buffer."""
        packed, buffer = self._packed, self.present[model]
        before = packed.parameters, packed.accumulated
        parameters = buffer[: self._count] if self._count else packed.parameters
        packed.bind(parameters, self.accumulated_in(buffer))
        try:
            yield packed
        finally:
            packed.bind(*before)

    def join(self, model: int, arrived: Tensor) -> None:
        """Let a model that has arrived be here, with what was accumulated for it meanwhile."""
        own = self.present.get(model)
        if own is not None:
            self.accumulated_in(arrived).add_(self.accumulated_in(own))
            self.spare.append(own)
        self.present[model] = arrived

    def reduce(self) -> None:
        """Add the gradients and losses of all models here to the replica, in order of model."""
        for model in sorted(self.present):
            buffer = self.present.pop(model)
            self._packed.accumulated += self.accumulated_in(buffer)
            self.spare.append(buffer)


class Transport:
    """Moves models between time steps, each behind a header: epoch, iteration, time step and model.

    A model that brings nothing but gradients need not be there to be trained on: a rank trains on
    its own group while the gradients of earlier ranks are on their way, and adds them up
    afterwards. So ranks wait for each other only if one is a whole time step behind. Where
    parameters move, training begins when they have arrived.

    What is left of waiting for headers is time lost to a slower rank and counts as ``wait``, the
    transfer of the models as ``migrate``. An unexpected header ends the run, since the wrong model
    would be trained otherwise. All sends and receives run at once, so ranks cannot block each other
    in a ring.
    """

    def __init__(self, cluster: Cluster, log: RunLog, cause: Cause) -> None:
        self._cluster, self._log, self._cause = cluster, log, cause

    def travel(
        self,
        buffers: Mapping[int, ReplicaBuffers],
        timeline: Sequence[Visit],
        batch: GlobalBatch,
        train: Callable[[int, int, FlatModel], None],
        *,
        moved: Callable[[Visit, Visit], None] = lambda _before, _now: None,
        returns: bool = False,
    ) -> None:
        """Let models start, move and be trained as this rank's visits say, and add up what they
        accumulated.

        It raises as :meth:`exchanging`. Models of the same shape may share ``buffers``. ``train``
        is called with time step, model and the flat model that accumulates, and ``moved`` after
        models have moved between two visits, with their parameters. If a model ``returns``, it only
        brings its gradients home before the last visit.
        """
        brings_parameters = any(of.moves_parameters for of in buffers.values())
        for model in timeline[0].models:
            buffers[model].start(model)

        def train_all(now: Visit) -> None:
            for model in now.models:
                fields = self._log.note_fields(step=now.step, model=model)
                with fields, buffers[model].load(model) as packed:
                    train(now.step, model, packed)

        train_all(timeline[0])
        for before, now in pairwise(timeline):
            is_home = returns and now is timeline[-1]
            moment = batch.epoch, batch.iteration, now.step
            with self._moving(buffers, moment, before, now, is_home):
                if not brings_parameters:
                    for move in now.arrivals:
                        buffers[move.model].start(move.model)
                    train_all(now)
            if brings_parameters:
                with self._log.note_fields(step=now.step):
                    moved(before, now)
                if not is_home:
                    train_all(now)
        for model_buffers in dict.fromkeys(buffers.values()):
            model_buffers.reduce()

    @contextmanager
    def _moving(
        self,
        buffers: Mapping[int, ReplicaBuffers],
        moment: tuple[int, int, int],
        before: Visit,
        now: Visit,
        gradients_only: bool,
    ) -> Iterator[None]:
        """Let models move, while the block runs, that leave after one time step or are due in the
        next."""

        def part(move: Move, buffer: Tensor) -> Tensor:
            return buffers[move.model].accumulated_in(buffer) if gradients_only else buffer

        leaving = {move: buffers[move.model].present.pop(move.model) for move in before.departures}
        arriving = {move: buffers[move.model].empty() for move in now.arrivals}
        sides = ({move: part(move, b) for move, b in side.items()} for side in (leaving, arriving))
        with self.exchanging(moment, *sides):
            yield
        for move, buffer in leaving.items():
            buffers[move.model].spare.append(buffer)
        for move, buffer in arriving.items():
            buffers[move.model].join(move.model, buffer)

    @contextmanager
    def exchanging(
        self,
        moment: tuple[int, int, int],
        leaving: Mapping[Move, Tensor],
        arriving: Mapping[Move, Tensor],
    ) -> Iterator[None]:
        """Send, while the block runs, what leaves before a moment (epoch, iteration, time step),
        and receive what is due then, both in order of model.

        At the end of the block it raises DeadlineExceeded or RankLost, which name the operation,
        and ClusterError if another model arrives than the one that is due.
        """
        if not leaving and not arriving:
            yield
            return
        cluster, copy = self._cluster, self._cluster.copy_for_sending
        headers = {move: torch.tensor([*moment, move.model]) for move in leaving}
        received = {move: torch.empty(_HEADER_WORDS, dtype=torch.int64) for move in arriving}
        bodies = {move: copy(buffer) for move, buffer in leaving.items()}
        landing = {move: copy(buffer) for move, buffer in arriving.items()}
        parts = [f"sending model {move.model} to rank {move.rank}" for move in leaving]
        parts += [f"receiving model {move.model} from rank {move.rank}" for move in arriving]
        what = f"before time step {moment[2]}: {', '.join(parts)}"
        with cluster.explain_failures(what):
            of_headers = self._start(headers, received, _TAG_HEADER)
            of_bodies = self._start(bodies, landing, _TAG_BODY)
        yield
        with cluster.explain_failures(what), self._log.note_fields(step=moment[2]):
            with self._log.stage("wait", operation="migrate"):
                self._wait(of_headers)
            for move, header in received.items():
                found, due = tuple(header.tolist()), (*moment, move.model)
                if found != due:
                    raise ClusterError(
                        f"rank {cluster.rank}: expected (epoch, iteration, time step, model) "
                        f"{due} from rank {move.rank}, got {found}"
                    )
            size = sum(buffer.nbytes for buffer in leaving.values())
            with self._log.stage("migrate", models=[move.model for move in leaving], bytes=size):
                self._wait(of_bodies)
                for move, landed in landing.items():
                    if landed is not arriving[move]:
                        arriving[move].copy_(landed)
        for move, buffer in leaving.items():
            cluster.count_message("control", move.rank, headers[move].nbytes)
            cluster.count_message(self._cause, move.rank, buffer.nbytes)

    def _start(
        self, leaving: Mapping[Move, Tensor], arriving: Mapping[Move, Tensor], tag: int
    ) -> list[dist.Work | None]:
        messages = self._cluster.messages
        if all(buffer.device.type == "cpu" for buffer in (*leaving.values(), *arriving.values())):
            works = [messages.isend(b, move.rank, tag=tag) for move, b in leaving.items()]
            return works + [messages.irecv(b, move.rank, tag=tag) for move, b in arriving.items()]
        # NCCL matches sends and receives only if they are issued as one batch.
        sends = [dist.P2POp(dist.isend, b, move.rank) for move, b in leaving.items()]
        receives = [dist.P2POp(dist.irecv, b, move.rank) for move, b in arriving.items()]
        return list(dist.batch_isend_irecv(sends + receives))

    def _wait(self, works: Sequence[dist.Work | None]) -> None:
        """Wait for messages, and look meanwhile whether another rank's wait has failed."""
        cluster, ended = self._cluster, Future[None]()

        def wait() -> None:
            try:
                for work in filter(None, works):
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
        while not ended.done():
            with suppress(TimeoutError):
                ended.exception(_LOOK_SECONDS)
            if not ended.done():
                cluster.store.check_others()
        return ended.result()


def broadcast(cluster: Cluster, tensor: Tensor, owner: int, operation: str) -> None:
    """Copy the tensor of one rank, its owner, to all ranks, in place. Every rank must call this.

    Raises DeadlineExceeded or RankLost, which name the operation.
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
    place = (cluster.rank - owner) % cluster.world
    for power in reversed(range((cluster.world - 1).bit_length())):
        if place % (2 << power) == 0 and place + (1 << power) < cluster.world:
            receiver = (cluster.rank + (1 << power)) % cluster.world
            cluster.count_message("model", receiver, tensor.nbytes)
