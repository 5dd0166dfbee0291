"""Messages between ranks of a rehearsal.

Implements the functions of ``torch.distributed`` that :class:`hopper.cluster.Cluster` calls.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hopper.rehearsal.link import Link
from hopper.rehearsal.turns import Turns

Parts = Mapping[int, Any]
"""by rank, its tensors in a message"""


class Group:
    """A process group.

    Attributes
    ----------
    ranks: its members.
    meetings: unfinished messages by key.
    counts: how many messages each rank has taken part in, by key and rank.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self.meetings: dict[Hashable, Meeting] = {}
        self.counts: Counter[Hashable] = Counter()


class Meeting:
    """A message that several ranks take part in; it is sent once all of them have called it.

    Attributes
    ----------
    parts: tensors of each rank.
    begun: by rank, when it called.
    done: by rank, when the message is complete for it.
    waiting: how many ranks wait for the message.
    met: notified when all ranks have called.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self.parts: dict[int, Any] = {}
        self.begun: dict[int, float] = {}
        self.done: dict[int, float] = {}
        self.waiting = 0
        self.met = threading.Condition(lock)


class Hall:
    """The turns, link and groups that all ranks of a rehearsal share.

    Attributes
    ----------
    turns: the ranks' turns and clocks.
    link: the time that messages take.
    groups: process groups in order of their making; the first has all ranks.
    """

    def __init__(self, turns: Turns, link: Link, world: int) -> None:
        self.turns, self.link = turns, link
        self.groups = [Group(range(world))]


class Work:
    """A running message, with the interface of ``torch.distributed``."""

    def __init__(self, hall: Hall, rank: int, meeting: Meeting) -> None:
        self._hall, self._rank, self._meeting = hall, rank, meeting

    def wait(self, _limit: timedelta) -> None:
        """Wait until the message is complete, while other ranks have their turns."""
        turns, meeting, rank = self._hall.turns, self._meeting, self._rank
        if not meeting.done:
            meeting.waiting += 1
            turns.wait(rank, meeting.met, lambda: bool(meeting.done))
        turns.clocks[rank].wait_until(meeting.done[rank])


class Messages:
    """One rank's functions of ``torch.distributed``."""

    def __init__(self, hall: Hall, rank: int) -> None:
        self._hall, self._rank, self._groups_made = hall, rank, 0

    def new_group(self, ranks: Sequence[int] | None = None, **_: Any) -> Group:
        """Make a process group. Every rank must make all groups in the same order."""
        groups = self._hall.groups
        self._groups_made += 1
        if self._groups_made == len(groups):
            groups.append(Group(groups[0].ranks if ranks is None else ranks))
        return groups[self._groups_made]

    def destroy_process_group(self, _group: Group) -> None:
        """Do nothing: there is nothing to close."""

    def all_reduce(self, tensor: Tensor, group: Group | None = None, **_: Any) -> Work:
        """Sum a tensor over ranks, in the time of a ring's reduce-scatter and all-gather."""
        ranks = self._group(group).ranks
        steps = 2 * (len(ranks) - 1)
        share = tensor.nbytes / len(ranks)

        def meet(parts: Parts) -> None:
            total = torch.stack([parts[rank] for rank in ranks]).sum(0, dtype=tensor.dtype)
            for rank in ranks:
                parts[rank].copy_(total)

        return self._collective(group, tensor, meet, steps, share)

    def reduce(self, tensor: Tensor, dst: int, group: Group | None = None, **_: Any) -> Work:
        """Sum a tensor over ranks, on one of them."""

        def meet(parts: Parts) -> None:
            parts[dst].copy_(torch.stack(list(parts.values())).sum(0))

        steps = len(self._group(group).ranks) - 1
        return self._collective(group, tensor, meet, steps, tensor.nbytes)

    def broadcast(self, tensor: Tensor, src: int, group: Group | None = None, **_: Any) -> Work:
        """Copy one rank's tensor to all ranks."""

        def meet(parts: Parts) -> None:
            for rank, part in parts.items():
                if rank != src:
                    part.copy_(parts[src])

        steps = len(self._group(group).ranks) - 1
        return self._collective(group, tensor, meet, steps, tensor.nbytes)

    def all_gather(
        self, out: Sequence[Tensor], tensor: Tensor, group: Group | None = None, **_: Any
    ) -> Work:
        """Copy every rank's tensor to all ranks, in the time of a ring."""
        ranks = self._group(group).ranks

        def meet(parts: Parts) -> None:
            for outputs, _ in parts.values():
                for output, rank in zip(outputs, ranks, strict=True):
                    output.copy_(parts[rank][1])

        steps = len(ranks) - 1
        return self._collective(group, (out, tensor), meet, steps, tensor.nbytes)

    def all_to_all_single(
        self,
        out: Tensor,
        tensor: Tensor,
        output_split_sizes: Sequence[int],
        input_split_sizes: Sequence[int],
        group: Group | None = None,
        **_: Any,
    ) -> Work:
        """Send rows from every rank to every other."""
        received = out.split(list(output_split_sizes))
        sent = tensor.split(list(input_split_sizes))
        others = len(self._group(group).ranks) - 1
        nbytes = sum(
            part.nbytes
            for parts in (sent, received)
            for rank, part in enumerate(parts)
            if rank != self._rank
        )
        self._spend(2 * others, nbytes)
        return self._meet(self._group(group), (received, sent), self._move_rows)

    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work:
        """Send a tensor to one rank."""
        return self._pair(tensor, self._rank, dst, tag)

    def irecv(self, tensor: Tensor, src: int, tag: int = 0) -> Work:
        """Receive a tensor from one rank."""
        return self._pair(tensor, src, self._rank, tag)

    def _move_rows(self, meeting: Meeting) -> None:
        ranks = list(range(len(meeting.parts)))
        sizes = np.array([[p.nbytes for p in meeting.parts[rank][1]] for rank in ranks], float)
        for source in ranks:
            for destination, part in enumerate(meeting.parts[source][1]):
                meeting.parts[destination][0][source].copy_(part)
        begun = np.array([meeting.begun[rank] for rank in ranks])
        arrived = begun[:, None] + self._hall.link.all_to_all(sizes)
        # No rank waits for an empty message.
        arrived[sizes == 0] = 0.0
        # A rank is done when its messages have arrived and it has received all others.
        done = np.maximum(begun, np.maximum(arrived.max(0), arrived.max(1)))
        meeting.done = dict(zip(ranks, done.tolist(), strict=True))

    def _pair(self, tensor: Tensor, src: int, dst: int, tag: int) -> Work:
        """Take part in a message between two ranks, as either end."""
        link, pairs = self._hall.link, self._hall.groups[0]

        def meet(meeting: Meeting) -> None:
            meeting.parts[dst].copy_(meeting.parts[src])
            done = max(meeting.begun.values()) + link.between(src, dst, tensor.nbytes)
            meeting.done = dict.fromkeys(meeting.parts, done)

        self._spend(1, tensor.nbytes)
        return self._meet(pairs, tensor, meet, (src, dst, tag), 2)

    def _collective(
        self,
        group: Group | None,
        part: Any,
        meet: Callable[[Parts], None],
        steps: int,
        nbytes: float,
    ) -> Work:
        """Take part in a message that goes around a group in ``steps`` of ``nbytes`` each."""
        chosen, link = self._group(group), self._hall.link

        def end(meeting: Meeting) -> None:
            meet(meeting.parts)
            done = max(meeting.begun.values()) + link.ring(chosen.ranks, nbytes, steps)
            meeting.done = dict.fromkeys(meeting.parts, done)

        self._spend(2 * steps, 2 * steps * nbytes)
        return self._meet(chosen, part, end)

    def _group(self, group: Group | None) -> Group:
        return self._hall.groups[0] if group is None else group

    def _spend(self, messages: float, nbytes: float) -> None:
        clock = self._hall.turns.clocks[self._rank]
        clock.work(self._hall.link.between_ranks.of(messages, nbytes))

    def _meet(
        self,
        group: Group,
        part: Any,
        end: Callable[[Meeting], None],
        name: tuple[int, ...] = (),
        ranks: int = 0,
    ) -> Work:
        """Take part in a message; the last rank to call carries it out.

        Parameters
        ----------
        part: this rank's tensors.
        end: carries the message out and sets ``done``.
        name: key of a message between two ranks; () for a collective.
        ranks: how many ranks take part; 0 = the whole group.
        """
        turns, rank = self._hall.turns, self._rank
        group.counts[name, rank] += 1
        key = (name, group.counts[name, rank])
        meeting = group.meetings.setdefault(key, Meeting(turns.lock))
        meeting.parts[rank], meeting.begun[rank] = part, turns.clocks[rank].read()
        if len(meeting.parts) == (ranks or len(group.ranks)):
            clock = turns.clocks[rank]
            # Copying stands for the network's work, so it takes no rank's processor time.
            clock.stop()
            del group.meetings[key]
            with torch.no_grad():
                end(meeting)
            turns.resume(meeting.met, meeting.waiting)
            clock.go_on()
        return Work(self._hall, rank, meeting)
