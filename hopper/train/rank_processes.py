"""Running the ranks of one machine under torchrun's own agent."""

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
from hopper.signal_handlers import TO_END, handle_signals
from hopper.torchrun import loopback_rendezvous
from hopper.train.parent import DIE_WITH_PARENT
from hopper.train.rank_failures import RECORD_FILE, Failure, read_failure
from hopper.train.watching import watching

POLL_SECONDS: Final = 0.1
_SHUTDOWN_SECONDS: Final = 1
"""How long a rank may take to end before it is killed. A suspended rank never reacts."""
_LOOK_SECONDS: Final = 1.0
# The agent must not pass Ctrl-C on to the ranks, which would each print a traceback. Older versions
# of torch lack this setting.
_SIGNALS: Final[dict[str, Any]] = (
    {"signals_to_handle": "SIGTERM"}
    if "signals_to_handle" in LaunchConfig.__dataclass_fields__
    else {}
)

# torch finds the entry point only if Hopper is installed, so register the backend here too.
rendezvous_handler_registry.register(rendezvous.BACKEND, loopback_rendezvous())


@dataclass(frozen=True)
class Machine:
    """One of the machines that ranks run on; by default the only one.

    Attributes
    ----------
    index: its number, in the order of servers.
    count: how many machines there are.
    endpoint: "host:port" of the first machine, where the ranks of several machines meet.
    """

    index: int = 0
    count: int = 1
    endpoint: str = "127.0.0.1:0"


class ToldToEnd(SignalException):
    """A signal, ``received``, told this process to end. Its ranks always get SIGTERM."""

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(f"process {os.getpid()} got {received.name}", signal.SIGTERM)
        self.received = received


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
    """Run this machine's ranks to their end, within :func:`signals_as_exceptions`.

    Parameters
    ----------
    given: the file or folder that each rank gets as its argument.
    module: the Python module that each rank runs.
    end_limit: seconds within which all ranks must end after one has.
    threads: CPU threads of each rank; 0 = the machine's cores divided by its ranks.

    Raises
    ------
    RanksFailed: some ranks failed. All other ranks of this machine have been ended.
    DeadlineExceeded: a rank did not end after the others, and was killed.
    SignalException: a signal told this process to end. Its ranks have ended.
    """
    settings = thread_settings(ranks, threads) | {
        DIE_WITH_PARENT: str(os.getpid()),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_SHUTDOWN_SECONDS),
    }
    try:
        with (
            set_environment(settings),
            _quiet_agent(),
            scratch_folder("hopper-rank-records-") as folder,
            watching("rank-watch", (stragglers := _Stragglers(ranks, folder, end_limit)).watch),
        ):
            # -P keeps modules in the current folder from being imported.
            elastic_launch(_launch_config(ranks, machine, folder), sys.executable)(
                *("-P", "-m", module, str(given))
            )
    except ChildFailedError as error:
        failures: dict[int, ProcessFailure] = error.failures
        late = stragglers.late
        # Ranks that are late because another one failed do not hide that failure.
        causes = [
            read_failure(rank, failure) for rank, failure in failures.items() if rank not in late
        ]
        if late and not causes:
            names = ", ".join(f"rank {rank} (pid {pid})" for rank, pid in late.items())
            raise DeadlineExceeded(names, "ending after the other ranks", end_limit) from error
        raise RanksFailed(causes) from error
    finally:
        # If a signal arrives while the agent starts ranks, it does not know them yet.
        unknown = _living_ranks()
        _kill(unknown)
        psutil.wait_procs(unknown.values(), timeout=_SHUTDOWN_SECONDS)


def _launch_config(ranks: int, machine: Machine, folder: Path) -> LaunchConfig:
    """Return the settings of torchrun's agent.

    Parameters
    ----------
    folder: where failing ranks write their records.
    """
    alone = machine.count == 1
    return LaunchConfig(
        min_nodes=machine.count,
        max_nodes=machine.count,
        nproc_per_node=ranks,
        run_id=f"hopper-{os.getpid()}" if alone else "hopper",
        # For several machines, only the static rendezvous keeps their order and unpickles nothing.
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
    """Return the number of CPU threads of a rank; ``threads`` 0 = the machine's cores divided by
    ranks."""
    return threads or max(1, count_cores() // ranks)


def thread_settings(ranks: int, threads: int) -> dict[str, str]:
    """Return OpenMP's environment variables for a machine's ranks. Values in the environment win.

    Parameters
    ----------
    threads: CPU threads of each rank; 0 = the machine's cores divided by its ranks.
    """
    threads = threads_of_a_rank(threads, ranks)
    settings = {"OMP_NUM_THREADS": str(threads)}
    # Waiting threads spin for a moment by default, which speeds up many short operations. It is
    # harmful on a core that another rank's thread could use.
    if ranks * threads > count_cores():
        settings["OMP_WAIT_POLICY"] = "PASSIVE"
    return {name: os.environ.get(name, value) for name, value in settings.items()}


def count_cores() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """Raise :class:`ToldToEnd` on a signal to end, while the context lasts.

    torch installs handlers of its own when it starts ranks and does not remove them. This context
    restores the caller's handlers. The main thread must enter it.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise ToldToEnd(signal.Signals(number))

    with handle_signals(TO_END, end):
        yield


class _Stragglers:
    """Kills ranks that do not end.

    After a rank has failed, the others are killed a moment later: the agent gives them half a
    minute, which a suspended rank would use up. After a rank has ended well, or was killed and left
    no record, the others are killed after a limit: the agent would wait for ever, or half a minute.

    Parameters
    ----------
    ranks: number of ranks on this machine.
    folder: where failing ranks write their records.
    limit: seconds that a rank may live after another has ended without a record of an error.

    Attributes
    ----------
    late: the process id of each rank that was killed after the limit, by rank.
    """

    def __init__(self, ranks: int, folder: Path, limit: float) -> None:
        self._ranks = ranks
        self._folder = folder
        self._limit = limit
        self.late: dict[int, int] = {}

    def watch(self, done: threading.Event) -> None:
        """Watch the ranks until ``done`` is set."""
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
                self.late = {rank: process.pid for rank, process in living.items()}
                _kill(living)
                return


def _living_ranks() -> dict[int, psutil.Process]:
    """Return the processes of ranks that have not ended, by rank."""
    processes, parent = {}, str(os.getpid())
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            environment = child.environ()
            # Schedulers set RANK for this process too, and so for its feature servers.
            is_rank = environment.get(DIE_WITH_PARENT) == parent and "RANK" in environment
            if is_rank and child.status() != psutil.STATUS_ZOMBIE:
                processes[int(environment["RANK"])] = child
    return dict(sorted(processes.items()))


def _kill(ranks: Mapping[int, psutil.Process]) -> None:
    for process in ranks.values():
        with contextlib.suppress(psutil.Error):
            process.kill()


@contextmanager
def _quiet_agent() -> Iterator[None]:
    """Silence the logs of torchrun's agent: the launcher's error says in one line what happened."""
    logs = [
        log
        for name, log in logging.root.manager.loggerDict.items()
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


def ending_signal(error: SignalException) -> signal.Signals:
    """Return the signal that told this process to end."""
    return error.received if isinstance(error, ToldToEnd) else error.sigval


@contextmanager
def set_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the context lasts, for processes that it starts."""
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
