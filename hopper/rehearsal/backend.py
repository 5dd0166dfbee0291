"""A backend for messages between ranks that are threads of one process.

:class:`RankBackend` has the functions of ``torch.distributed`` that
:class:`hopper.cluster.cluster.Cluster` calls. Tensors are copied once all ranks of a message have
called. Without clocks a rank may call from several threads.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from hopper.errors import RankLost
from hopper.rehearsal.clock import RankClock

Parts = Mapping[int, Any]
"""by rank, its tensors in a message"""


@dataclass
class Message:
    """A message that some ranks have called for; its future ends once all have."""

    parts: dict[int, Any] = field(default_factory=dict)
    arrived: float = 0.0
    """when the slowest part arrives, on the ranks' clocks"""
    future: Future[float] = field(default_factory=Future)


@dataclass
class ProcessGroup:
    """Some ranks, their pending messages by key, and how many messages each has called for."""

    ranks: Sequence[int]
    pending: dict[Hashable, Message] = field(default_factory=dict)
    counts: Counter[Hashable] = field(default_factory=Counter)


class InMemoryBackend:
    """What all ranks share: process groups in order of their making; the first has all ranks."""

    def __init__(self, world: int) -> None:
        self.lock = threading.Lock()
        self.groups = [ProcessGroup(range(world))]
        self.failure: BaseException | None = None

    def abort(self, error: BaseException) -> None:
        """End all waits, since a rank has failed. Only the first error counts."""
        with self.lock:
            if self.failure is None:
                self.failure = error
                for message in (m for group in self.groups for m in group.pending.values()):
                    message.future.set_exception(RankLost(f"another rank failed: {error!r}"))


@dataclass(frozen=True)
class Work:
    """A running message, with the interface of ``torch.distributed.Work``."""

    future: Future[float]
    clock: RankClock | None

    def wait(self, limit: timedelta) -> None:
        """Wait until the message has ended; raise TimeoutError if other ranks do not call for it in
        time, and RankLost if one has failed."""
        if self.clock is None:
            self.future.result(limit.total_seconds())
        else:
            self.clock.wait(self.future, limit.total_seconds())


class RankBackend:
    """One rank's functions of ``torch.distributed``; with a clock the time of messages counts."""

    def __init__(self, backend: InMemoryBackend, rank: int, clock: RankClock | None = None) -> None:
        self._backend, self._rank, self._clock = backend, rank, clock
        self._groups_made = 0

    def new_group(self, ranks: Sequence[int] | None = None, **_: Any) -> ProcessGroup:
        """Make a process group. Every rank must make all groups in the same order."""
        groups = self._backend.groups
        with self._backend.lock:
            self._groups_made += 1
            if self._groups_made == len(groups):
                groups.append(ProcessGroup(groups[0].ranks if ranks is None else ranks))
            return groups[self._groups_made]

    def destroy_process_group(self, _group: ProcessGroup) -> None:
        """Do nothing: there is nothing to close."""

    def all_reduce(self, tensor: Tensor, group: ProcessGroup | None = None, **_: Any) -> Work:
        """Sum a tensor over ranks, in the time of a ring's reduce-scatter and all-gather."""
        ranks = self._ranks(group)

        def complete(parts: Parts) -> None:
            total = torch.stack([parts[rank] for rank in ranks]).sum(0, dtype=tensor.dtype)
            for part in parts.values():
                part.copy_(total)

        share = tensor.nbytes / len(ranks)
        return self._ring(group, tensor, complete, share, 2 * (len(ranks) - 1))

    def reduce(self, tensor: Tensor, dst: int, group: ProcessGroup | None = None, **_: Any) -> Work:
        """Sum a tensor over ranks, on one of them."""
        ranks = self._ranks(group)

        def complete(parts: Parts) -> None:
            parts[dst].copy_(torch.stack([parts[rank] for rank in ranks]).sum(0))

        return self._ring(group, tensor, complete, tensor.nbytes)

    def broadcast(
        self, tensor: Tensor, src: int, group: ProcessGroup | None = None, **_: Any
    ) -> Work:
        """Copy one rank's tensor to all ranks."""

        def complete(parts: Parts) -> None:
            for rank, part in parts.items():
                if rank != src:
                    part.copy_(parts[src])

        return self._ring(group, tensor, complete, tensor.nbytes)

    def all_gather(
        self, out: Sequence[Tensor], tensor: Tensor, group: ProcessGroup | None = None, **_: Any
    ) -> Work:
        """Copy every rank's tensor to all ranks, in the time of a ring."""
        ranks = self._ranks(group)

        def complete(parts: Parts) -> None:
            for outputs, _ in parts.values():
                for output, rank in zip(outputs, ranks, strict=True):
                    output.copy_(parts[rank][1])

        return self._ring(group, (out, tensor), complete, tensor.nbytes, len(ranks) - 1)

    def all_to_all_single(
        self,
        out: Tensor,
        tensor: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        group: ProcessGroup | None = None,
        **_: Any,
    ) -> Work:
        """Send rows from every rank to every other, all at once."""
        ranks = self._ranks(group)
        received, sent = out.split(list(output_split_sizes)), tensor.split(list(input_split_sizes))

        def complete(parts: Parts) -> None:
            for source, rank in enumerate(ranks):
                for destination, part in zip(ranks, parts[rank][1], strict=True):
                    parts[destination][0][source].copy_(part)

        sizes = {r: p.nbytes for r, p in zip(ranks, sent, strict=True) if r != self._rank}
        return self._start(group, (received, sent), complete, sizes, together=True)

    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work:
        """Send a tensor to one rank."""
        return self._pair(tensor, self._rank, dst, tag)

    def irecv(self, tensor: Tensor, src: int, tag: int = 0) -> Work:
        """Receive a tensor from one rank."""
        return self._pair(tensor, src, self._rank, tag)

    def _pair(self, tensor: Tensor, src: int, dst: int, tag: int) -> Work:
        """Take part in a message between two ranks, as either end."""

        def complete(parts: Parts) -> None:
            parts[dst].copy_(parts[src])

        sizes = {src + dst - self._rank: tensor.nbytes}
        return self._start(None, tensor, complete, sizes, pair=(src, dst, tag))

    def _ring(
        self,
        group: ProcessGroup | None,
        part: Any,
        complete: Callable[[Parts], None],
        nbytes: float,
        steps: int = 1,
    ) -> Work:
        """Take part in ``steps``, in each of which all ranks pass ``nbytes`` to the next one."""
        ranks = self._ranks(group)
        following = ranks[(ranks.index(self._rank) + 1) % len(ranks)]
        return self._start(group, part, complete, {following: nbytes}, steps)

    def _ranks(self, group: ProcessGroup | None) -> Sequence[int]:
        return (group or self._backend.groups[0]).ranks

    def _start(
        self,
        group: ProcessGroup | None,
        part: Any,
        complete: Callable[[Parts], None],
        sizes: Mapping[int, float],
        steps: int = 1,
        *,
        together: bool = False,
        pair: tuple[int, ...] = (),
    ) -> Work:
        """Take part in a message with this rank's tensors; the last rank to call carries it out.

        ``sizes``, ``steps`` and ``together`` are those of :meth:`RankClock.begin`. ``pair`` has
        source, destination and tag of a message between two ranks, and is () of a collective.
        """
        backend, clock = self._backend, self._clock
        group = group or backend.groups[0]
        arrives = clock.begin(sizes, steps, 1 if pair else 2, together=together) if clock else 0.0
        # Copying stands for the network's work, so it takes no rank's processor time.
        with clock.stopped() if clock else nullcontext(), backend.lock:
            if backend.failure is not None:
                raise RankLost(f"another rank failed: {backend.failure!r}")
            group.counts[pair, self._rank] += 1
            key = (pair, group.counts[pair, self._rank])
            message = group.pending.setdefault(key, Message())
            message.parts[self._rank] = part
            message.arrived = max(message.arrived, arrives)
            if len(message.parts) == (2 if pair else len(group.ranks)):
                with torch.no_grad():
                    complete(message.parts)
                del group.pending[key]
                message.future.set_result(message.arrived)
        return Work(message.future, clock)
