"""The cluster of all ranks, as one rank sees it, and its collectives.

torchrun's environment names the rank. Rank r is on server ``r // ranks_per_server``. Every wait has
a deadline, and every byte that is sent to another server is counted. Messages between ranks are raw
tensors: nothing is pickled.
"""

from __future__ import annotations

import copy
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore

from hopper.cluster.rank_network import ADVICE, find_way, take_interface
from hopper.cluster.rank_store import OtherFailed, RankStore, machine_key, name_ranks, silence_of
from hopper.cluster.traffic import Cause, Traffic
from hopper.errors import ConfigError, RankLost
from hopper.process.time_limit import finish_within

_LOOK_SECONDS: Final = 1.0
"""How long a rank waits before it looks whether another rank's wait has failed."""
_MOMENT: Final = 1e-3
"""The shortest wait, in seconds."""
_SHOWN: Final = 8
"""How many ranks an error names as neighbours at most."""


class Cluster:
    """One rank's view of all ranks.

    Attributes
    ----------
    rank, world: this rank and the number of ranks N.
    server, servers: the server of this rank, and the number of servers P.
    ranks_per_server: N / P.
    device: the device that this rank computes on.
    timeout: deadline of every wait, seconds.
    through_host: whether tensors are copied to host memory to be sent.
    traffic: counts what this rank sends to other servers.
    messages: carries messages: ``torch.distributed``, or an object with those of its functions that
        this module and :mod:`hopper.migrate.migration` call.
    clock: returns this rank's seconds.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        ranks_per_server: int,
        device: torch.device,
        timeout: float,
        *,
        through_host: bool = False,
    ) -> None:
        if world % ranks_per_server:
            raise ConfigError(
                f"cluster.ranks_per_server: {ranks_per_server} does not divide the {world} ranks "
                "that were started"
            )
        self.rank = rank
        self.world = world
        self.ranks_per_server = ranks_per_server
        self.servers = world // ranks_per_server
        self.server = rank // ranks_per_server
        self.device = device
        self.timeout = timeout
        self.through_host = through_host
        self.traffic = Traffic()
        self.messages: Any = dist
        self.clock: Callable[[], float] = time.perf_counter
        self.store: RankStore | None = None
        """what ranks tell each other beside their connections; None in a cluster of one"""
        # None is the group of all ranks that torch keeps.
        self._group: dist.ProcessGroup | None = None
        self._levels: tuple[dist.ProcessGroup, dist.ProcessGroup] | None = None
        """Two groups: this server's ranks, and the first ranks of all servers. None if a server has
        one rank, or if there is one server."""
        # In gloo's ring each rank sends to the next one, which may be on another server.
        self._ring_leaves_server = self.server_of((rank + 1) % world) != self.server

    @classmethod
    def join(
        cls,
        ranks_per_server: int,
        device: torch.device,
        timeout: float,
        start_timeout: float,
        *,
        through_host: bool = False,
        insecure: bool = False,
    ) -> Cluster:
        """Join the ranks that torchrun started. A process without torchrun is a cluster of one.

        After an error the caller must end the process with ``os._exit``: a thread may still wait.

        Parameters
        ----------
        start_timeout: deadline of each step in which all ranks meet, seconds.
        through_host: whether tensors are copied to host memory to be sent. Ranks that share a GPU
            need it.
        insecure: whether ranks may talk to each other through public addresses.

        Raises
        ------
        ConfigError: the interface to other ranks is public, or is not there.
        ClusterError: ranks did not come in time, or cannot connect; names them, or the step.
        """
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        cluster = cls(rank, world, ranks_per_server, device, timeout, through_host=through_host)
        if world == 1:
            return cluster
        # torchrun keeps one store for all attempts (--max-restarts).
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        cluster.store = RankStore.open(rank, world, f"attempt-{restarts}", start_timeout)
        place, advice = cluster._choose_interface(start_timeout, insecure)

        def step(operation: str, connect: Callable[[], object]) -> None:
            with cluster.explain_failures(f"{operation} {place}", start_timeout, advice):
                finish_within(start_timeout, connect)

        is_direct = device.type == "cuda" and not through_host
        # The group's limit is an upper bound for the limit of every single wait. Neither gloo nor
        # NCCL keeps a limit while it connects.
        step(
            "connecting to the other ranks",
            lambda: dist.init_process_group(
                "cpu:gloo,cuda:nccl" if is_direct else "gloo",
                store=PrefixStore("group", cluster.store.store),  # type: ignore[union-attr]
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=max(start_timeout, timeout)),
            ),
        )
        cluster._learn_pids()
        if 1 < ranks_per_server < world:
            step("connecting the ranks of each server", cluster._make_levels)
        if is_direct:
            # NCCL connects all ranks in the first message on a device. A first message between
            # only some ranks would wait for the others.
            # The current device is another one in another thread.
            zero = torch.zeros(1, device=device)
            step(
                "connecting to the other ranks by NCCL",
                lambda: cluster._wait(dist.all_reduce(zero, async_op=True)),
            )
        return cluster

    def _choose_interface(self, limit: float, insecure: bool) -> tuple[str, str]:
        """Choose the interface for gloo and NCCL; return it in words, with what to do if ranks
        cannot connect through it."""
        assert self.store is not None
        way = find_way(os.environ["MASTER_ADDR"])
        seen = self.store.tell_all("here", way.host, limit, "meeting the other ranks")
        interface = take_interface(way, seen, insecure=insecure)
        operation = "learning the other ranks' network interfaces"
        places = self.store.tell_all("interface", str(interface), limit, operation)
        others = [f"rank {r} uses {place}" for r, place in enumerate(places) if r != self.rank]
        more = ", ..." if len(others) > _SHOWN else ""
        advice = f"{', '.join(others[:_SHOWN])}{more}; set {ADVICE} on each machine"
        return f"through {interface}", advice

    def second_channel(self) -> Cluster:
        """Open connections between the same ranks for another thread; every rank must call it.

        All ranks must call the collectives of one channel in the same order. There is no order
        between collectives of different channels.
        """
        channel = copy.copy(self)
        # A second channel has only small sums, which need no levels.
        channel._levels = None
        # The channel uses gloo, which reads host memory.
        channel.through_host = self.through_host or self.device.type == "cuda"
        if self.world > 1:
            limit = timedelta(seconds=self.timeout)
            with self.explain_failures("opening a second channel"):
                channel._group = finish_within(
                    self.timeout, lambda: self.messages.new_group(backend="gloo", timeout=limit)
                )
        return channel

    def close(self) -> None:
        """Close a second channel; every rank must call it."""
        if self._group is not None:
            self.messages.destroy_process_group(self._group)
            self._group = None

    def leave(self) -> None:
        """Leave the process group. A cluster of one has none to leave."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def server_of(self, rank: int) -> int:
        """Return the server of a rank."""
        return rank // self.ranks_per_server

    def all_reduce(self, tensor: Tensor, cause: Cause, operation: str, *, apart: int = 0) -> None:
        """Sum a tensor over all ranks, in place.

        The ranks of a server add up their tensors first, and one of them sums over servers. The
        bytes that a server sends thus do not grow with its ranks.

        Parameters
        ----------
        apart: how many numbers at the end of a vector to sum only over the ranks of this server.
        """
        if self.world == 1:
            return
        sent = self.copy_for_sending(tensor)
        shared = sent[: len(sent) - apart] if apart and self.servers > 1 else sent
        with self.explain_failures(operation):
            if self._levels is None:
                self._wait(self.messages.all_reduce(shared, group=self._group, async_op=True))
                self._count_ring(cause, 2 * (self.world - 1) * shared.nbytes // self.world)
            else:
                self._sum_by_levels(sent, shared, cause)
        if sent is not tensor:
            tensor.copy_(sent)

    def _sum_by_levels(self, tensor: Tensor, shared: Tensor, cause: Cause) -> None:
        """Sum a tensor over this server's ranks, and ``shared``, a part of it, over all ranks."""
        assert self._levels is not None
        server, firsts = self._levels
        first = self.server * self.ranks_per_server
        self._wait(self.messages.reduce(tensor, first, group=server, async_op=True))
        if self.rank == first:
            self._wait(self.messages.all_reduce(shared, group=firsts, async_op=True))
            self.traffic.count(cause, 2 * (self.servers - 1) * shared.nbytes // self.servers)
        self._wait(self.messages.broadcast(tensor, first, group=server, async_op=True))

    def _make_levels(self) -> None:
        """Make the two groups of ``_levels``; every rank must take part in making all groups."""
        size, limit = self.ranks_per_server, timedelta(seconds=self.timeout)
        servers = [
            self.messages.new_group(list(range(first, first + size)), timeout=limit)
            for first in range(0, self.world, size)
        ]
        firsts = self.messages.new_group(list(range(0, self.world, size)), timeout=limit)
        self._levels = servers[self.server], firsts

    def all_gather(self, tensor: Tensor, cause: Cause, operation: str) -> Tensor:
        """Return [N, ...]: every rank's tensor, in rank order. All have equal shapes and dtypes."""
        if self.world == 1:
            return tensor[None].clone()
        sent = self.copy_for_sending(tensor)
        gathered = [torch.empty_like(sent) for _ in range(self.world)]
        with self.explain_failures(operation):
            self._wait(self.messages.all_gather(gathered, sent, group=self._group, async_op=True))
        self._count_ring(cause, (self.world - 1) * tensor.nbytes)
        return torch.stack(gathered).to(tensor.device)

    def arrive(self, operation: str) -> None:
        """Wait until every rank has called this."""
        self.all_reduce(torch.zeros(1, dtype=torch.int32), "control", operation)

    def exchange(
        self, parts: Sequence[Tensor], counts: Sequence[int], cause: Cause, operation: str
    ) -> list[Tensor]:
        """Send ``parts[r]`` to every rank r, and receive ``counts[r]`` rows from every rank r.

        All parts have the same dtype and shape of rows. A part may have no rows.
        """
        if self.world == 1:
            return [parts[0]]
        sent = torch.cat(list(parts))
        lengths = [len(part) for part in parts]
        received = self.start_exchange(sent, lengths, counts, cause, operation).finish()
        return list(received.split(list(counts)))

    def start_exchange(
        self,
        sent: Tensor,
        lengths: Sequence[int],
        counts: Sequence[int],
        cause: Cause,
        operation: str,
        into: Tensor | None = None,
    ) -> Exchange:
        """Begin to exchange rows between all ranks.

        Parameters
        ----------
        sent: rows to send, those for rank 0 first. They must not change before
            :meth:`Exchange.finish`.
        lengths: number of rows to send to every rank.
        counts: number of rows to receive from every rank.
        into: [sum of counts, ...], contiguous, with the dtype and device of ``sent``: where to
            receive, in a cluster of at least two ranks. None = in a new tensor.
        """
        sent = sent.contiguous()
        if self.world == 1:
            return Exchange(self, None, sent, sent, sent, operation)
        outgoing = self.copy_for_sending(sent)
        received = sent.new_empty((sum(counts), *sent.shape[1:])) if into is None else into
        landing = received if outgoing is sent else outgoing.new_empty(received.shape)
        with self.explain_failures(operation):
            work = self.messages.all_to_all_single(
                landing,
                outgoing,
                output_split_sizes=list(counts),
                input_split_sizes=list(lengths),
                group=self._group,
                async_op=True,
            )
        row = sent[:1].nbytes if len(sent) else 0
        for rank, length in enumerate(lengths):
            if self.server_of(rank) != self.server:
                self.traffic.count(cause, length * row)
        return Exchange(self, work, outgoing, received, landing, operation)

    def copy_for_sending(self, tensor: Tensor) -> Tensor:
        """Return the tensor to send for one: itself, or a copy in host memory."""
        return tensor.to("cpu", copy=True) if self.through_host else tensor

    @contextmanager
    def explain_failures(
        self, operation: str, limit: float | None = None, advice: str = ""
    ) -> Iterator[None]:
        """Turn the process group's failures into errors that name rank, operation and limit (None =
        that of every wait), with an advice."""
        limit = self.timeout if limit is None else limit
        try:
            yield
        except (RuntimeError, TimeoutError) as error:
            assert self.store is not None
            timed_out = _is_timeout(error)
            reason = _reason(error)
            ended, silent = self.store.find_missing(
                f"{operation}: {reason}", timed_out=timed_out, timeout=limit
            )
            if ended:
                raise RankLost(
                    f"rank {self.rank}: {operation}: {', '.join(ended)} ended"
                ) from error
            if timed_out:
                raise silence_of(self.rank, silent, operation, limit, advice) from error
            lost = f"lost {name_ranks(silent)}"
            if isinstance(error, OtherFailed):
                lost = "another rank's wait failed first"
            text = f"rank {self.rank}: {operation}: {lost}: {reason}"
            raise RankLost(f"{text}; {advice}" if advice else text) from error

    def count_message(self, cause: Cause, destination: int, nbytes: int) -> None:
        """Count a point-to-point message if it leaves the server."""
        if self.server_of(destination) != self.server:
            self.traffic.count(cause, nbytes)

    def wait(self, work: dist.Work | None, operation: str) -> None:
        """Wait for a collective that has begun. None stands for one that has ended."""
        with self.explain_failures(operation):
            self._wait(work)

    def _wait(self, work: dist.Work | None) -> None:
        if work is None:
            return
        if self.store is None or not (self.device.type == "cpu" or self.through_host):
            # Only a wait of gloo can go on after its limit.
            work.wait(timedelta(seconds=self.timeout))
            return
        deadline = time.monotonic() + self.timeout
        while True:
            remaining = deadline - time.monotonic()
            ended = work.is_completed()
            try:
                work.wait(timedelta(seconds=max(_MOMENT, min(_LOOK_SECONDS, remaining))))
                return
            except RuntimeError as error:
                # Work may end after a wait for it has passed its limit.
                if ended or remaining <= _LOOK_SECONDS or not _is_timeout(error):
                    raise
            # Gloo does not tell every waiting rank that a connection broke.
            self.store.check_others()

    def _count_ring(self, cause: Cause, nbytes: int) -> None:
        if self._ring_leaves_server:
            self.traffic.count(cause, nbytes)

    def _learn_pids(self) -> None:
        """Learn the process ids of ranks on this machine, to find out later which have ended."""
        machine = machine_key()
        mine = torch.tensor([machine, os.getpid()], dtype=torch.int64)
        by_rank = self.all_gather(mine, "control", "meeting the other ranks")
        assert self.store is not None
        self.store.pids = {
            rank: int(pid) for rank, (key, pid) in enumerate(by_rank.tolist()) if key == machine
        }


@dataclass(eq=False)
class Exchange:
    """An exchange of rows between all ranks that has begun.

    Messages are written to ``landing``, another tensor than ``received`` if rows pass through host
    memory. They read ``sent``, so it is kept alive until they have ended.
    """

    cluster: Cluster
    work: dist.Work | None
    sent: Tensor | None
    received: Tensor
    """[sum of counts, ...]; only :meth:`finish` makes it valid."""
    landing: Tensor
    operation: str

    def finish(self) -> Tensor:
        """Wait for the rows and return them, those of rank 0 first."""
        work, self.work = self.work, None
        self.cluster.wait(work, self.operation)
        self.sent = None
        if self.landing is not self.received:
            # Detached, since autograd may have recorded the tensor already.
            self.received.detach().copy_(self.landing)
            self.landing = self.received
        return self.received


def _reason(error: BaseException) -> str:
    """Return Gloo's reason in a line, without its source file, and without its advice."""
    text = " ".join(str(error).split())
    return re.sub(r"\[/[^]]*\] *", "", text).partition(". This is")[0]


def _is_timeout(error: BaseException) -> bool:
    """Return whether a wait passed its limit. Gloo calls a refused connection timed out too."""
    if isinstance(error, OtherFailed):
        return False
    text = str(error).lower()
    says_so = "timed out" in text.replace("timed out connecting", "") or "timeout" in text
    return isinstance(error, TimeoutError) or says_so
