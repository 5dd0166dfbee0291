"""Notes that ranks leave for each other in the rendezvous store, beside their connections.

The store is reached over connections of its own. Ranks therefore can still report to it when the
connections between them have broken, and learn which ranks are gone.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psutil
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from hopper.cluster.rank_network import find_way
from hopper.errors import ClusterError, DeadlineExceeded, RankSilent

# How long a rank whose wait failed looks for the rank that caused it: after a wait that passed its
# deadline, and after a connection that broke, which other ranks may notice later.
_AFTER_TIMEOUT_SECONDS: Final = 2.0
_AFTER_BREAK_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.2
_REQUEST_LIMIT: Final = timedelta(seconds=2)
_FAILED: Final = "failed"


class OtherFailed(RuntimeError):
    """Says what the first rank whose wait failed has reported."""


class RankStore:
    """One rank's reports, and those of all others.

    Reports of earlier attempts to start the ranks, which are still in the store, are not seen.
    """

    def __init__(self, store: Any, rank: int, world: int, attempt: str) -> None:
        self.store = PrefixStore(attempt, store)
        self.rank = rank
        self.world = world
        self.pids: dict[int, int] = {}
        """the process ids of the ranks of this machine, by rank"""

    @classmethod
    def open(cls, rank: int, world: int, attempt: str, limit: float) -> RankStore:
        """Connect to the store at ``MASTER_ADDR`` and ``MASTER_PORT``, within some seconds.

        A launcher or torchrun's agent holds it for its ranks. Without one, rank 0 opens it.
        """
        host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if not host or not port.isdecimal():
            raise ClusterError(
                f"rank {rank}: MASTER_ADDR, MASTER_PORT: expected the host and port at which "
                f"{world} ranks meet, which torchrun sets, got {host!r}, {port!r}"
            )
        who, operation = f"rank {rank}", f"reaching the store of rank 0 at {host}:{port}"
        try:
            store = TCPStore(
                host,
                int(port),
                world,
                is_master=rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
                timeout=timedelta(seconds=limit),
                wait_for_workers=False,
                multi_tenant=True,
            )
        except dist.DistError as error:
            if "timed out" not in str(error):
                raise ClusterError(f"{who}: {operation}: {error}") from error
            advice = f"{_where_it_leads(host)}; MASTER_ADDR has to lead to the machine of rank 0"
            raise DeadlineExceeded(who, operation, limit, advice) from error
        return cls(store, rank, world, attempt)

    def tell_all(self, kind: str, value: str, limit: float, operation: str) -> list[str]:
        """Tell every rank a value of a kind; return those of all ranks, in rank order.

        The error names the ranks that did not tell theirs within ``limit`` seconds.
        """
        names = [f"{kind}/{rank}" for rank in range(self.world)]
        try:
            self.store.set(names[self.rank], value)
            self.store.wait(names, timedelta(seconds=limit))
        except dist.DistStoreError as error:
            missing = [rank for rank, name in enumerate(names) if not self.store.check([name])]
            raise silence_of(self.rank, missing, operation, limit) from error
        return [value.decode() for value in self.store.multi_get(names)]

    def find_missing(
        self, reason: str, *, timed_out: bool, timeout: float
    ) -> tuple[list[str], list[int]]:
        """Find the ranks that keep this rank waiting.

        Every rank whose wait fails says so in the store. A rank that has not done so after some
        seconds hangs, is gone, or cannot be reached. Processes of this machine that have ended are
        found at once. The search takes no longer than ``timeout``, the deadline of a wait.

        Parameters
        ----------
        reason: what was waited for and why the wait failed, which ranks that fail later will tell.
        timed_out: whether the wait passed its deadline; otherwise a connection broke.

        Returns
        -------
        Descriptions of ranks on this machine that ended, and the numbers of silent ranks.
        """
        patience = _AFTER_TIMEOUT_SECONDS if timed_out else _AFTER_BREAK_SECONDS
        limit = time.monotonic() + min(patience, timeout)
        silent = [rank for rank in range(self.world) if rank != self.rank]
        while True:
            # A rank that reported a failed wait and then ended is not the cause.
            silent = self._still_silent(silent, reason)
            gone = {rank: pid for rank, pid in self.pids.items() if not _is_alive(pid)}
            ended = [f"rank {r} (pid {pid})" for r, pid in gone.items() if r in silent]
            if ended or not silent or time.monotonic() > limit:
                return ended, silent
            time.sleep(_POLL_SECONDS)

    def check_others(self) -> None:
        """Raise OtherFailed if a rank has reported a failed wait, as far as the store can be
        asked."""
        try:
            failure = self.store.get(_FAILED).decode() if self.store.check([_FAILED]) else ""
        except (RuntimeError, dist.DistError):
            return
        if failure:
            raise OtherFailed(failure)

    def _still_silent(self, ranks: list[int], reason: str) -> list[int]:
        """Report this rank's failed wait; return the ranks that have not reported one."""
        try:
            self.store.set_timeout(_REQUEST_LIMIT)
            self.store.set(f"{_FAILED}/{self.rank}", "1")
            self.store.compare_set(_FAILED, "", f"rank {self.rank}, {reason}")
            return [rank for rank in ranks if not self.store.check([f"{_FAILED}/{rank}"])]
        except (RuntimeError, dist.DistError):
            # The store is gone too, with the process that held it.
            return ranks


def silence_of(
    rank: int, ranks: Sequence[int], operation: str, limit: float, advice: str = ""
) -> RankSilent:
    """Return the error of a rank's wait for other ranks."""
    return RankSilent(f"rank {rank}, waiting for {name_ranks(ranks)}", operation, limit, advice)


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks in words; "another rank" if there are none."""
    return ", ".join(f"rank {rank}" for rank in ranks) or "another rank"


def machine_key() -> int:
    """Return a number that is equal on ranks with the same process ids: same kernel and pid
    namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    text = boot + os.readlink("/proc/self/ns/pid")
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def _where_it_leads(host: str) -> str:
    try:
        return f"on this machine {host} leads to {find_way(host).host}"
    except OSError:
        return f"on this machine {host} leads nowhere"


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
