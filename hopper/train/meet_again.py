"""Meeting again after connections between ranks broke, without losing an iteration.

As HopGNN (section 8) writes, no partial gradient needs to be kept if recovery goes back to the end
of an iteration. Here every rank keeps its part of that state in memory after each iteration. A rank
whose wait failed learns through the rendezvous store whether all ranks live. If they do, each
writes its part to a file in memory and replaces itself by a new process with the same process id:
no thread, socket or message of the broken group is left. The new processes meet as at a start, and
continue from the files. Launchers do not notice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from cache_server.events import events
from hopper.cluster import RECONNECTS, Cluster
from hopper.config import Config, change_config
from hopper.errors import ClusterError, RankLost, RankSilent
from hopper.rank_store import RankStore
from hopper.train.last_iterations import LastIterations
from hopper.train.tensor_file import read_facts

_STATE: Final = "HOPPER_KEPT_STATE"
"""Environment variable: the file that the process before this one has written."""


class MeetAgain(Exception):
    """Ends the work of this process, so that its successor meets the other ranks.

    Parameters
    ----------
    state: the file to continue from; None = the successor starts as this process did.
    limit: how long ranks wait for each other to leave, in seconds.
    """

    def __init__(self, store: RankStore, state: Path | None, limit: float) -> None:
        super().__init__("connections between ranks broke")
        self._store = store
        self._state = state
        self._limit = limit

    def replace_process(self, successor: Sequence[str]) -> NoReturn:
        """Replace this process by another one.

        Parameters
        ----------
        successor: the module that it runs, and its arguments.

        Raises
        ------
        ClusterError: another rank does not leave.
        """
        self._store.leave_together(self._limit)
        environment = os.environ | {RECONNECTS: str(_count_reconnects() + 1)}
        if getattr(sys.stdout, "write_through", False):
            # torchrun starts ranks with -u, which a process does not find among its flags.
            environment["PYTHONUNBUFFERED"] = "1"
        step = -1
        if self._state is not None:
            environment[_STATE] = str(self._state)
            step = int(self._state.name)
        # Sockets of libraries would otherwise stay open, and other ranks would wait for them.
        for name in os.listdir("/proc/self/fd"):
            if int(name) > sys.stderr.fileno():
                _inherit(int(name), int(name) == step)
        sys.stdout.flush()
        sys.stderr.flush()
        safe_path = ["-P"] if sys.flags.safe_path else []
        command = [sys.executable, *safe_path, "-m", *successor]
        os.execve(sys.executable, command, environment)  # noqa: S606 # its own words, no shell


class KeptState:
    """The state that the process before this one has left.

    Attributes
    ----------
    path: its file.
    engine: the run's engine.
    step: the step that it is of.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        facts = read_facts(path)
        self.engine: str = facts["engine"]
        self.step: int = facts["step"]

    @classmethod
    def take(cls) -> KeptState | None:
        """Take the state that was left for this process; None at a start."""
        path = os.environ.pop(_STATE, None)
        return None if path is None else cls(Path(path))

    def apply_to(self, config: Config) -> Config:
        """Return the configuration of a run that continues, under the engine that it had."""
        return change_config(config, train={"resume": True, "engine": self.engine})

    def release(self) -> None:
        """Free the memory of the file."""
        if self.path.parts[2] == str(os.getpid()):
            os.close(int(self.path.name))


class MeetingAgain:
    """A context in which ranks whose connections break, while all of them live, meet again.

    It then raises :class:`MeetAgain` in place of the error.

    Parameters
    ----------
    kept: the state that this process continues from.

    Attributes
    ----------
    last: the last iterations of this process; None before there is anything to train.
    """

    def __init__(self, cluster: Cluster, config: Config, kept: KeptState | None) -> None:
        self.last: LastIterations | None = None
        self._cluster = cluster
        self._limits = config.cluster
        self._kept = kept

    def __enter__(self) -> MeetingAgain:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        store, count = self._cluster.store, _count_reconnects()
        if (
            not isinstance(error, (RankLost, RankSilent))
            or store is None
            or not store.all_live
            or count >= self._limits.reconnects
        ):
            return
        try:
            step = store.agree_on_step(self._newest_step, self._limits.timeout_seconds)
            state = self._leave_state(step)
        except (ClusterError, OSError) as reason:
            events.warn("reconnect", f"ranks cannot meet again: {reason}")
            return
        if self._cluster.rank == 0:
            place = "at the beginning" if step < 0 else f"after iteration {step}"
            events.warn(
                "reconnect",
                f"{error}; all ranks live and meet again {place}: "
                f"reconnection {count + 1} of {self._limits.reconnects}",
                reconnection=count + 1,
                step=step,
            )
        raise MeetAgain(store, state, self._limits.start_timeout_seconds) from error

    @property
    def _newest_step(self) -> int:
        """The newest step that this rank can continue from; -1 = only the beginning."""
        if self.last is not None and self.last.newest_step >= 0:
            return self.last.newest_step
        return -1 if self._kept is None else self._kept.step

    def _leave_state(self, step: int) -> Path | None:
        """Leave the state of a step to this process's successor; None = it is the beginning."""
        if step < 0:
            return None
        if self.last is None or self.last.newest_step < 0:
            assert self._kept is not None
            return self._kept.path
        number = os.memfd_create("hopper-kept-state")
        with open(number, "wb", closefd=False) as file:
            self.last.write(file, step)
        return Path(f"/proc/{os.getpid()}/fd/{number}")


def _count_reconnects() -> int:
    return int(os.environ.get(RECONNECTS, "0"))


def _inherit(number: int, is_inherited: bool) -> None:
    """Keep an open file in the next process, or close it there."""
    try:
        os.set_inheritable(number, is_inherited)
    except OSError:
        # It has been closed since it was listed.
        return
