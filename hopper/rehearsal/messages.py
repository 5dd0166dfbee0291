"""Messages between ranks that take turns: those functions of ``torch.distributed`` that
:class:`hopper.cluster.Cluster` calls."""

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
"""by rank, what it has brought to a meeting"""


class Group:
    """Some ranks. meetings: those under way, by their number."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self.meetings: dict[Hashable, Meeting] = {}
        self.counts: Counter[Hashable] = Counter()


class Meeting:
    """A message that several ranks take part in; it is on its way once all have come.

    Attributes
    ----------
    parts: as of :data:`Parts`. begun: by rank, when it came. done: by rank, when it can go on.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self.parts: dict[int, Any] = {}
        self.begun: dict[int, float] = {}
        self.done: dict[int, float] = {}
        self.waiting = 0
        self.met = threading.Condition(lock)


class Hall:
    """Where all ranks meet.

    Attributes
    ----------
    groups: in the order in which they were made; the first is that of all ranks.
    """

    def __init__(self, turns: Turns, link: Link, world: int) -> None:
        self.turns, self.link = turns, link
        self.groups = [Group(range(world))]


class Work:
    """A message under way, as ``torch.distributed`` has it."""

    def __init__(self, hall: Hall, rank: int, meeting: Meeting) -> None:
        self._hall, self._rank, self._meeting = hall, rank, meeting

    def wait(self, _limit: timedelta) -> None:
        """Let others have their turn until it is there."""
        turns, meeting, rank = self._hall.turns, self._meeting, self._rank
        if not meeting.done:
            meeting.waiting += 1
            turns.wait(rank, meeting.met, lambda: bool(meeting.done))
        turns.clocks[rank].wait_until(meeting.done[rank])


class Messages:
    """One rank's; functions are those of ``torch.distributed``."""

    def __init__(self, hall: Hall, rank: int) -> None:
        self._hall, self._rank, self._made = hall, rank, 0

    def new_group(self, ranks: Sequence[int] | None = None, **_: Any) -> Group:
        """Every rank makes all groups in the same order."""
        groups = self._hall.groups
        self._made += 1
        if self._made == len(groups):
            groups.append(Group(groups[0].ranks if ranks is None else ranks))
        return groups[self._made]

    def destroy_process_group(self, _group: Group) -> None:
        """Nothing is left to be closed."""

    def all_reduce(self, tensor: Tensor, group: Group | None = None, **_: Any) -> Work:
        """A ring of scattered and gathered sums."""
        ranks = self._group(group).ranks
        steps = 2 * (len(ranks) - 1)
        share = tensor.nbytes / len(ranks)

        def meet(parts: Parts) -> None:
            total = torch.stack([parts[each] for each in ranks]).sum(0, dtype=tensor.dtype)
            for each in ranks:
                parts[each].copy_(total)

        return self._collective(group, tensor, meet, steps, share)

    def reduce(self, tensor: Tensor, dst: int, group: Group | None = None, **_: Any) -> Work:
        """The sum, on one rank."""

        def meet(parts: Parts) -> None:
            parts[dst].copy_(torch.stack([parts[each] for each in parts]).sum(0))

        steps = len(self._group(group).ranks) - 1
        return self._collective(group, tensor, meet, steps, tensor.nbytes)

    def broadcast(self, tensor: Tensor, src: int, group: Group | None = None, **_: Any) -> Work:
        """What one rank has, on all."""

        def meet(parts: Parts) -> None:
            for rank, part in parts.items():
                if rank != src:
                    part.copy_(parts[src])

        steps = len(self._group(group).ranks) - 1
        return self._collective(group, tensor, meet, steps, tensor.nbytes)

    def all_gather(
        self, out: Sequence[Tensor], tensor: Tensor, group: Group | None = None, **_: Any
    ) -> Work:
        """What every rank has, on all: a ring."""
        ranks = self._group(group).ranks

        def meet(parts: Parts) -> None:
            for own, _ in parts.values():
                for place, each in zip(own, ranks, strict=True):
                    place.copy_(parts[each][1])

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
        """Rows from every rank to every other."""
        parts = (out.split(list(output_split_sizes)), tensor.split(list(input_split_sizes)))
        others = len(self._group(group).ranks) - 1
        nbytes = sum(each.nbytes for place, each in enumerate(parts[1]) if place != self._rank)
        nbytes += sum(each.nbytes for place, each in enumerate(parts[0]) if place != self._rank)
        self._spend(2 * others, nbytes)
        return self._meet(self._group(group), parts, self._move_rows)

    def isend(self, tensor: Tensor, dst: int, tag: int = 0) -> Work:
        """To one rank."""
        return self._pair(tensor, self._rank, dst, tag)

    def irecv(self, tensor: Tensor, src: int, tag: int = 0) -> Work:
        """From one rank."""
        return self._pair(tensor, src, self._rank, tag)

    def _move_rows(self, meeting: Meeting) -> None:
        ranks = list(range(len(meeting.parts)))
        sizes = np.array([[p.nbytes for p in meeting.parts[each][1]] for each in ranks], float)
        for source in ranks:
            for destination, part in enumerate(meeting.parts[source][1]):
                meeting.parts[destination][0][source].copy_(part)
        begun = np.array([meeting.begun[each] for each in ranks])
        arrived = begun[:, None] + self._hall.link.all_to_all(sizes)
        # Who has nothing to send is not waited for.
        arrived[sizes == 0] = 0.0
        # Everybody has sent, and whatever came is there.
        done = np.maximum(begun, np.maximum(arrived.max(0), arrived.max(1)))
        meeting.done = dict(zip(ranks, done.tolist(), strict=True))

    def _pair(self, tensor: Tensor, src: int, dst: int, tag: int) -> Work:
        """One end of a message between two ranks."""
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
        """A message that goes around a group's ranks in so many steps of ``nbytes``."""
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
        """Come to a meeting; whoever comes last lets it happen.

        Parameters
        ----------
        name: of a message between two. ranks: how many come; 0 = the whole group.
        """
        turns, rank = self._hall.turns, self._rank
        group.counts[name, rank] += 1
        key = (name, group.counts[name, rank])
        meeting = group.meetings.setdefault(key, Meeting(turns.lock))
        meeting.parts[rank], meeting.begun[rank] = part, turns.clocks[rank].read()
        if len(meeting.parts) == (ranks or len(group.ranks)):
            clock = turns.clocks[rank]
            # Nobody's processor copies what a network carries.
            clock.stop()
            del group.meetings[key]
            with torch.no_grad():
                end(meeting)
            turns.resume(meeting.met, meeting.waiting)
            clock.go_on()
        return Work(self._hall, rank, meeting)
