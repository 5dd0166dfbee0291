"""The ranks of one machine under torchrun's own agent, and what is told of ranks that failed."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

import psutil
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hopper import rendezvous
from hopper.errors import DeadlineExceeded
from hopper.scratch import scratch_folder
from hopper.signal_handlers import TO_END, handled
from hopper.torchrun import loopback_rendezvous
from hopper.train.parent import DIE_WITH_PARENT
from hopper.train.rank_failures import RECORD_FILE, Failure, read_failure
from hopper.train.watching import watching

POLL_SECONDS: Final = 0.1
_SHUTDOWN_SECONDS: Final = 1
"""how long a rank that is told to end may take, before it is killed: one that is stopped does not
react"""
_LOOK_SECONDS: Final = 1.0
_LOOPBACK: Final = "lo"
# Otherwise the agent would hand Ctrl-C on to the ranks, and each would print where it was. Older
# versions of torch cannot be told.
_SIGNALS: Final[dict[str, Any]] = (
    {"signals_to_handle": "SIGTERM"}
    if "signals_to_handle" in LaunchConfig.__dataclass_fields__
    else {}
)

# Where Hopper is not installed, torch does not find the entry point.
rendezvous_handler_registry.register(rendezvous.BACKEND, loopback_rendezvous())


@dataclass(frozen=True)
class Machine:
    """One of the machines that ranks run on; by default the only one.

    Attributes
    ----------
    index, count: its place in the order of servers, and how many there are.
    endpoint: "host:port" where the ranks of several machines meet: an address of the first.
    """

    index: int = 0
    count: int = 1
    endpoint: str = "127.0.0.1:0"


class ToldToEnd(SignalException):
    """This process was told to end, by ``told``; its ranks get SIGTERM, whatever that was."""

    def __init__(self, told: signal.Signals) -> None:
        super().__init__(f"process {os.getpid()} got {told.name}", signal.SIGTERM)
        self.told = told


class RanksFailed(Exception):
    """Ranks of this machine ended with an error or by a signal."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__(f"{len(failures)} ranks failed")
        self.failures = tuple(failures)


def run_ranks(
    given: Path,
    ranks: int,
    machine: Machine,
    module: str = "hopper.train",
    *,
    end_limit: float,
    threads: int = 0,
) -> None:
    """Run this machine's ranks to their end; needs :func:`signals_as_exceptions` around it.

    Parameters
    ----------
    given: the file or folder that ranks are given. module: what a rank runs.
    end_limit: seconds within which ranks end after one has.
    threads: as of :func:`threads_of_a_rank`.

    Raises
    ------
    RanksFailed: some did not end well; all others of this machine have been ended.
    DeadlineExceeded: a rank did not end after the others; it was killed.
    SignalException: this process was told to end; its ranks have ended.
    """
    alone = machine.count == 1
    settings = thread_settings(ranks, threads) | {
        DIE_WITH_PARENT: str(os.getpid()),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_SHUTDOWN_SECONDS),
    }
    if alone:
        settings |= {
            name: os.environ.get(name, _LOOPBACK)
            for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        }
    try:
        with (
            set_environment(settings),
            _quiet_agent(),
            scratch_folder("hopper-rank-records-") as folder,
            watching("rank-watch", (stragglers := _Stragglers(ranks, folder, end_limit)).watch),
        ):
            # -P: nothing is imported from the folder that this process happens to be in.
            elastic_launch(_launch_config(ranks, machine, folder), sys.executable)(
                *("-P", "-m", module, str(given))
            )
    except ChildFailedError as error:
        if stragglers.late:
            who = ", ".join(stragglers.late)
            raise DeadlineExceeded(who, "ending after the other ranks", end_limit) from error
        failures: dict[int, ProcessFailure] = error.failures
        raise RanksFailed([read_failure(rank, each) for rank, each in failures.items()]) from error


def _launch_config(ranks: int, machine: Machine, folder: Path) -> LaunchConfig:
    """What torchrun's agent is told; ``folder`` takes the records of ranks that fail."""
    alone = machine.count == 1
    return LaunchConfig(
        min_nodes=machine.count,
        max_nodes=machine.count,
        nproc_per_node=ranks,
        run_id=f"hopper-{os.getpid()}" if alone else "hopper",
        # Of those for several machines only the static one numbers them in their own order, and
        # unpickles nothing.
        rdzv_backend=rendezvous.BACKEND if alone else "static",
        rdzv_endpoint=machine.endpoint,
        rdzv_configs={} if alone else {"rank": machine.index},
        local_addr=machine.endpoint.rpartition(":")[0] if machine.index == 0 else None,
        max_restarts=0,
        monitor_interval=POLL_SECONDS,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder)),
        **_SIGNALS,
    )


def threads_of_a_rank(threads: int, ranks: int) -> int:
    """The CPU threads asked for; 0 = the machine's cores divided by the ranks on it."""
    return threads or max(1, cores() // ranks)


def thread_settings(ranks: int, threads: int) -> dict[str, str]:
    """OpenMP's settings for a machine's ranks; those that the environment has stay.

    Parameters
    ----------
    threads: as of :func:`threads_of_a_rank`.
    """
    threads = threads_of_a_rank(threads, ranks)
    settings = {"OMP_NUM_THREADS": str(threads)}
    # By themselves threads that wait spin for a moment, and many short operations are the faster
    # for it; but not on a core that another rank's thread could use.
    if ranks * threads > cores():
        settings["OMP_WAIT_POLICY"] = "PASSIVE"
    return {name: os.environ.get(name, value) for name, value in settings.items()}


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """Raise on a signal to end, before torchrun's agent does so too; the caller's handlers return.

    torch installs its own when it starts the ranks, and leaves them there. For the main thread.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise ToldToEnd(signal.Signals(number))

    with handled(TO_END, end):
        yield


class _Stragglers:
    """Ranks that do not end: killed a moment after one has failed, since the agent, which tells
    them to end, gives them half a minute, and one that is stopped would use it up; and long after
    one has ended well, since the agent would wait for ever.

    Parameters
    ----------
    ranks: how many there are on this machine.
    folder: of the records of ranks that fail.
    limit: seconds that a rank may live after another has ended.

    Attributes
    ----------
    late: "rank R (pid P)" of those that were killed after the limit.
    """

    def __init__(self, ranks: int, folder: Path, limit: float) -> None:
        self._ranks = ranks
        self._folder = folder
        self._limit = limit
        self.late: list[str] = []

    def watch(self, done: threading.Event) -> None:
        """See :func:`watching`."""
        looked_at = whole_at = time.monotonic()
        while not done.wait(POLL_SECONDS):
            if any(self._folder.rglob(RECORD_FILE)):
                if not done.wait(_SHUTDOWN_SECONDS):
                    _kill(_living_ranks())
                return
            now = time.monotonic()
            if now - looked_at < _LOOK_SECONDS:
                continue
            looked_at, living = now, _living_ranks()
            if len(living) in (0, self._ranks):
                whole_at = now
            elif now - whole_at > self._limit:
                self.late = [f"rank {rank} (pid {each.pid})" for rank, each in living.items()]
                _kill(living)
                return


def _living_ranks() -> dict[int, psutil.Process]:
    found = {}
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            environment = child.environ()
            if child.status() != psutil.STATUS_ZOMBIE and "RANK" in environment:
                found[int(environment["RANK"])] = child
    return dict(sorted(found.items()))


def _kill(ranks: Mapping[int, psutil.Process]) -> None:
    for process in ranks.values():
        with contextlib.suppress(psutil.Error):
            process.kill()


@contextmanager
def _quiet_agent() -> Iterator[None]:
    """Let torchrun's agent log nothing: what ended a run is told in one line."""
    known = logging.root.manager.loggerDict.items()
    logs = [
        log
        for name, log in known
        if name.startswith("torch.distributed.elastic") and isinstance(log, logging.Logger)
    ]
    before = [log.disabled for log in logs]
    try:
        for log in logs:
            log.disabled = True
        yield
    finally:
        for log, disabled in zip(logs, before, strict=True):
            log.disabled = disabled


def told_signal(error: SignalException) -> signal.Signals:
    """The signal by which this process was told to end."""
    return error.told if isinstance(error, ToldToEnd) else error.sigval


@contextmanager
def set_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set what processes that are started meanwhile inherit, and put this process's own environment
    back."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
