"""The ranks of one machine under torchrun's own agent, and what is told of ranks that failed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hopper.errors import ClusterError, DeadlineExceeded, RankLost
from hopper.signal_handlers import handled

DIE_WITH_PARENT = "HOPPER_DIE_WITH_PARENT"
POLL_SECONDS = 0.1


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


@dataclass(frozen=True)
class Failure:
    """How a rank ended that did not end well.

    Attributes
    ----------
    exit_code: negative where a signal ended it.
    message: the last line of its error.
    moment: when, in seconds since the epoch.
    """

    rank: int
    pid: int
    exit_code: int
    message: str
    moment: int


class RanksFailed(Exception):
    """Ranks of this machine ended with an error or by a signal."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__(f"{len(failures)} ranks failed")
        self.failures = tuple(failures)


def run_ranks(
    config_file: Path,
    ranks: int,
    machine: Machine,
    module: str = "hopper.train",
    *,
    threads: int = 0,
) -> None:
    """Run this machine's ranks to their end; needs :func:`signals_as_exceptions` around it.

    Parameters
    ----------
    module: what a rank runs.
    threads: as of :func:`threads_of_a_rank`.

    Raises
    ------
    RanksFailed: some did not end well; all others of this machine have been ended.
    SignalException: this process was told to end; its ranks have ended.
    """
    alone = machine.count == 1
    launch = LaunchConfig(
        min_nodes=machine.count,
        max_nodes=machine.count,
        nproc_per_node=ranks,
        run_id=f"hopper-{os.getpid()}" if alone else "hopper",
        # Only a static rendezvous numbers machines in their own order.
        rdzv_backend="c10d" if alone else "static",
        rdzv_endpoint=machine.endpoint,
        rdzv_configs={} if alone else {"rank": machine.index},
        local_addr=machine.endpoint.rpartition(":")[0] if machine.index == 0 else None,
        max_restarts=0,
        monitor_interval=POLL_SECONDS,
        logs_specs=DefaultLogsSpecs(log_dir=str(config_file.parent / "torchrun")),
    )
    try:
        with _environment(thread_settings(ranks, threads) | {DIE_WITH_PARENT: "1"}):
            elastic_launch(launch, sys.executable)("-m", module, str(config_file))
    except ChildFailedError as error:
        failures: dict[int, ProcessFailure] = error.failures
        raise RanksFailed([_told(rank, each) for rank, each in failures.items()]) from error


def threads_of_a_rank(threads: int, ranks: int) -> int:
    """The CPU threads asked for; 0 = the machine's cores divided by the ranks on it."""
    return threads or max(1, _cores() // ranks)


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
    if ranks * threads > _cores():
        settings["OMP_WAIT_POLICY"] = "PASSIVE"
    return {name: os.environ.get(name, value) for name, value in settings.items()}


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def find_first(failures: Sequence[Failure]) -> Failure:
    """The failure that came first; the others are its consequence."""
    killed = [each for each in failures if was_killed(each)]
    # A rank that hung is killed too, by torchrun's agent: after the deadline of one that waited.
    waited = any(DeadlineExceeded.__name__ in each.message for each in failures)
    if killed and not waited:
        return min(killed, key=lambda each: each.rank)
    return min((each for each in failures if each not in killed), key=lambda each: each.moment)


def explain(failures: Sequence[Failure]) -> ClusterError:
    """The rank that failed first, and why."""
    first = find_first(failures)
    if was_killed(first):
        return RankLost(
            f"rank {first.rank} (pid {first.pid}) {how_it_ended(first.exit_code)}; "
            "the other ranks were ended"
        )
    return ClusterError(f"rank {first.rank} (pid {first.pid}) failed: {first.message}")


def was_killed(failure: Failure) -> bool:
    """Whether a signal ended the rank other than that by which torchrun's agent ends ranks."""
    return failure.exit_code < 0 and failure.exit_code != -signal.SIGTERM


def how_it_ended(code: int) -> str:
    """A process's exit code in words."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


@contextmanager
def signals_as_exceptions() -> Iterator[None]:
    """Raise on a signal to end, before torchrun's agent does so too; the caller's handlers return.

    torch installs its own when it starts the ranks, and leaves them there. For the main thread.
    """

    def end(number: int, _frame: FrameType | None) -> None:
        raise SignalException(f"process {os.getpid()} got a signal", signal.Signals(number))

    kinds = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    with handled(kinds, end):
        yield


def _told(rank: int, failure: ProcessFailure) -> Failure:
    # torch declares a string; of a recorded exception it is a dictionary.
    recorded: Any = failure.message
    text = str(recorded["message"] if isinstance(recorded, dict) else recorded).strip()
    message = text.splitlines()[-1] if text else "no message"
    return Failure(rank, failure.pid, failure.exitcode, message, failure.timestamp)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set what ranks inherit, and put this process's own environment back."""
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
