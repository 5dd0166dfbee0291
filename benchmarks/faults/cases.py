"""What happens to runs, and which end is right: recovered, or a named error within the deadline."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.faults.altered_files import alter
from benchmarks.faults.links import Link, cut_connections
from benchmarks.faults.running import Running, Serving

Expected = Literal["recovered", "error", "either"]
Act = Callable[[Running], None]
RESUME: Final = ("--train.resume", "auto")

_PAUSE_SECONDS: Final = 2.0
_LINK_SECONDS: Final = 5.0
_AWAY_SECONDS: Final = 0.5
_SLOW: Final = 5e3
"""bytes per second"""
_WRITING_SECONDS: Final = 3.0
_RANK: Final = (
    r"(error: |waiting for )rank {place}\b|rank {place} .* (ended|failed)|rank {place}\b.*finish"
)
_SERVER: Final = r"feature server {place}\b"
_TOLD: Final = r"ended by SIG|interrupted|told to end"
_DISK: Final = r"No space left|bytes of free space"
_MEMORY: Final = r"killed by SIGKILL|out of memory|Cannot allocate|\bpid \d+\) ended"


@dataclass(frozen=True)
class Case:
    """A kind of fault.

    Attributes
    ----------
    act: makes it happen.
    expected: what a run has to do. One that need not recover may: what happened came too late.
    named: pattern that the last line of a run that ends early has to have; "{place}" is the index
        of the rank or server.
    serving_by, small_disk, bounded_memory: as of :func:`running`.
    restarts: whether the run is allowed three.
    goes_on: whether the launcher is killed, and the same command started again, with
        ``train.resume = "auto"``, after what has ended; then that is what has to recover.
    seconds: how long it lasts, where it does not last for good.
    """

    name: str
    act: Act
    expected: Expected
    named: str = ""
    serving_by: Serving = "itself"
    restarts: bool = False
    small_disk: bool = False
    bounded_memory: bool = False
    goes_on: bool = False
    seconds: float = 0.0

    @property
    def word(self) -> str:
        """The name as a word of the command line."""
        return re.sub(r"\W+", "-", self.name.lower())

    @property
    def needs_root(self) -> bool:
        """Whether it mounts or bounds anything."""
        return self.small_disk or self.bounded_memory


def _signal(number: signal.Signals, process: str) -> Act:
    """Send a signal to a process; one that stops it for a while is SIGCONT."""

    def send(run: Running) -> None:
        pid = run.find(process)
        run.begun = time.monotonic()
        if pid is not None:
            with suppress(ProcessLookupError):
                if number == signal.SIGCONT:
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(_PAUSE_SECONDS)
                os.kill(pid, number)

    return send


def _interrupt(run: Running) -> None:
    with suppress(ProcessLookupError):
        os.killpg(run.process.pid, signal.SIGINT)


def _kill_and_return(run: Running) -> None:
    assert run.victim is not None
    run.victim.kill()
    run.victim.communicate()
    time.sleep(_AWAY_SECONDS)
    run.start_victim()


def _fill_disk(run: Running) -> None:
    with (run.folder / "ballast").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def _fill_disk_while_writing(run: Running) -> None:
    deadline = time.monotonic() + _WRITING_SECONDS
    while not run.is_writing and run.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    run.begun = time.monotonic()
    _fill_disk(run)


def _bound_memory(run: Running) -> None:
    """Bound the server's memory to what it has, so that more is too much."""
    assert run.group is not None
    names = ("memory.usage_in_bytes memory.limit_in_bytes", "memory.current memory.max")
    for used, bound in map(str.split, names):
        if (run.group / bound).exists():
            for extra in range(0, 64 << 20, 1 << 20):
                # The server may have taken more memory since the usage was read.
                with suppress(OSError):
                    now = int((run.group / used).read_text())
                    (run.group / bound).write_text(str(now + extra))
                    return


def _link(act: Callable[[Link, Running], object]) -> Act:
    def let(run: Running) -> None:
        assert run.link is not None
        run.begun = time.monotonic()
        act(run.link, run)

    return let


def _cut_ranks(run: Running) -> None:
    """Cut all connections between ranks, once they have met."""
    while run.process.poll() is None and not (run.has_met and cut_connections(run.ranks())):
        time.sleep(0.01)
    run.begun = time.monotonic()


def _go_down_for_a_while(link: Link, _: Running) -> None:
    link.go_down()
    time.sleep(_LINK_SECONDS)
    link.mend()


def _kill_and_alter(count: int) -> Act:
    """Kill the launcher and all that it started, and alter some of the newest checkpoints."""

    def act(run: Running) -> None:
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        run.end()
        while run.members():
            time.sleep(0.02)
        draw = random.Random(run.run_dir.name + str(run.epochs_done))
        for file in run.checkpoints[:count]:
            alter(file, draw, ("bits flipped", "cut short"))

    return act


_ALONE, _TWO, _LINK, _BOTH = (
    "a server beside it", "two servers of a part", "a link", "a link and a server",
)  # fmt: skip
_KILL, _STOP, _TERM, _PAUSE = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT
_DOWN = _link(lambda link, _: link.go_down())
_TO_SILENT = _link(lambda link, run: link.lead_to(run.world.silent.address))
_TO_RANDOM = _link(lambda link, run: link.lead_to(run.world.babbling.address))
_TO_OTHER = _link(lambda link, run: link.lead_to(run.world.others[run.place]))
_TO_PART = _link(lambda link, run: link.lead_to(run.world.servers[1 - run.place]))
_SLOWLY = _link(lambda link, _: link.slow_down(_SLOW))
_FLIP = _link(lambda link, _: link.flip_a_bit())

CASES: Final = {
    case.name: case
    for case in (
        Case("a rank is killed", _signal(_KILL, "rank"), "error", _RANK),
        Case("a rank is killed, restarts", _signal(_KILL, "rank"), "recovered", restarts=True),
        Case("a rank crashes, restarts", _signal(signal.SIGSEGV, "rank"), "recovered",
             restarts=True),
        Case("a rank is told to end", _signal(_TERM, "rank"), "error", _RANK),
        Case("a rank is stopped", _signal(_STOP, "rank"), "error", _RANK),
        Case("a rank is stopped, restarts", _signal(_STOP, "rank"), "recovered", restarts=True),
        Case("a rank is stopped for 2 s", _signal(_PAUSE, "rank"), "recovered",
             seconds=_PAUSE_SECONDS),
        Case("a server is killed", _signal(_KILL, "server"), "error", _SERVER),
        Case("a server is killed, restarts", _signal(_KILL, "server"), "recovered", restarts=True),
        Case("a server is told to end, restarts", _signal(_TERM, "server"), "recovered",
             restarts=True),
        Case("a server is stopped", _signal(_STOP, "server"), "error", _SERVER),
        Case("a server is stopped, restarts", _signal(_STOP, "server"), "recovered", restarts=True),
        Case("a server is stopped for 2 s", _signal(_PAUSE, "server"), "recovered",
             seconds=_PAUSE_SECONDS),
        Case("a server that it did not start is killed", _signal(_KILL, "server"), "error",
             _SERVER, _ALONE),
        Case("a server is killed and returns at its address", _kill_and_return, "recovered",
             _SERVER, _ALONE),
        Case("one of two servers of a part is killed", _signal(_KILL, "server"), "recovered",
             serving_by=_TWO),
        Case("one of two servers of a part is stopped", _signal(_STOP, "server"), "recovered",
             serving_by=_TWO),
        Case("the launcher is killed, and started again", _signal(_KILL, "launcher"), "recovered",
             goes_on=True),
        Case("the launcher is stopped for 2 s", _signal(_PAUSE, "launcher"), "recovered",
             seconds=_PAUSE_SECONDS),
        Case("the launcher is told to end", _signal(_TERM, "launcher"), "error", _TOLD),
        Case("the launcher is told to end, restarts", _signal(_TERM, "launcher"), "error", _TOLD,
             restarts=True),
        Case("Ctrl-C", _interrupt, "error", _TOLD),
        Case("the link to a server is down for 5 s", _link(_go_down_for_a_while), "recovered",
             serving_by=_LINK, seconds=_LINK_SECONDS),
        Case("the link to a server is down for good", _DOWN, "error", _SERVER, _LINK),
        Case("the link to one of two servers is down for good", _DOWN, "recovered",
             serving_by=_BOTH),
        Case("connections are cut", _link(lambda link, _: link.cut()), "recovered",
             serving_by=_LINK),
        Case("connections between ranks are cut", _cut_ranks, "recovered"),
        Case("a bit flips on the way", _FLIP, "either", _SERVER, _LINK),
        Case("replies at 5 kB/s", _SLOWLY, "either", _SERVER, _LINK),
        Case("a server accepts and never answers", _TO_SILENT, "error", _SERVER, _LINK),
        Case("one of two servers accepts and never answers", _TO_SILENT, "recovered",
             serving_by=_BOTH),
        Case("a server answers with random bytes", _TO_RANDOM, "error", _SERVER, _LINK),
        Case("one of two servers answers with random bytes", _TO_RANDOM, "recovered",
             serving_by=_BOTH),
        Case("a server of another graph takes its address", _TO_OTHER, "error", _SERVER, _LINK),
        Case("a server of another part takes its address", _TO_PART, "error", _SERVER, _LINK),
        Case("the disk is full", _fill_disk, "error", _DISK, small_disk=True),
        Case("the disk is full while a checkpoint is written", _fill_disk_while_writing, "error",
             _DISK, small_disk=True),
        Case("killed, and the newest checkpoint is altered", _kill_and_alter(1), "recovered",
             goes_on=True),
        Case("killed, and all checkpoints are altered", _kill_and_alter(9), "recovered",
             goes_on=True),
        Case("no more memory than it has", _bound_memory, "either", _MEMORY, bounded_memory=True),
    )
}  # fmt: skip
"""by name"""
