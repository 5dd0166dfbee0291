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
from pathlib import Path
from typing import Final, Literal

from benchmarks.faults.links import cut_connections
from benchmarks.faults.running import Running

Right = Literal["recovered", "error", "either"]
Act = Callable[[Running], None]
RESTARTS: Final = ("--restarts", "3")
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
    name: what happens.
    act: makes it happen.
    right: what a run has to do. One that need not recover may: what happened came too late.
    named: pattern that the last line of a run that ends early has to have; "{place}" is the index
        of the rank or server.
    words: of ``hopper train``, beside the configuration.
    serving_by, small_disk, bounded_memory: as of :func:`running`.
    kills_launcher: whether nobody is left to say anything.
    goes_on: whether the same command is started again, with ``train.resume = "auto"``, after what
        has ended; then that is what has to recover.
    seconds: how long it lasts, where it does not last for good.
    """

    name: str
    act: Act
    right: Right
    named: str = ""
    words: tuple[str, ...] = ()
    serving_by: str = "itself"
    small_disk: bool = False
    bounded_memory: bool = False
    kills_launcher: bool = False
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
    def send(run: Running) -> None:
        pid = run.find(process)
        run.begun = time.monotonic()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    return send


def _pause(process: str) -> Act:
    def stop(run: Running) -> None:
        pid = run.find(process)
        run.begun = time.monotonic()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                time.sleep(_PAUSE_SECONDS)
                os.kill(pid, signal.SIGCONT)

    return stop


def _interrupt(run: Running) -> None:
    with suppress(ProcessLookupError):
        os.killpg(run.process.pid, signal.SIGINT)


def _kill_and_return(run: Running) -> None:
    assert run.victim is not None
    run.victim.kill()
    run.victim.communicate()
    time.sleep(_AWAY_SECONDS)
    run.return_victim()


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
    [group] = run.cgroups
    for used, bound in (
        ("memory.usage_in_bytes", "memory.limit_in_bytes"), ("memory.current", "memory.max"),
    ):  # fmt: skip
        if (group / bound).exists():
            for extra in range(0, 64 << 20, 1 << 20):
                # The server may have taken more memory since the usage was read.
                with suppress(OSError):
                    now = int((group / used).read_text())
                    (group / bound).write_text(str(now + extra))
                    return


def _link(act: Callable[[Running], object]) -> Act:
    def let(run: Running) -> None:
        run.begun = time.monotonic()
        act(run)

    return let


def _cut_ranks(run: Running) -> None:
    """Cut all connections between ranks, once they have met."""
    while run.process.poll() is None and not (run.has_met and cut_connections(run.ranks())):
        time.sleep(0.01)
    run.begun = time.monotonic()


def _go_down_for_a_while(run: Running) -> None:
    assert run.link is not None
    run.link.go_down()
    time.sleep(_LINK_SECONDS)
    run.link.mend()


def _reach(address_of: Callable[[Running], str]) -> Act:
    """Lead the server's address to another address from now on."""

    def lead(run: Running) -> None:
        assert run.link is not None
        run.begun = time.monotonic()
        run.link.proxy.lead_to(address_of(run))

    return lead


def _alter(file: Path, draw: random.Random) -> None:
    content = bytearray(file.read_bytes())
    place = draw.randrange(len(content))
    if draw.random() < 0.5:
        content[place] ^= 1 << draw.randrange(8)
    else:
        del content[place:]
    file.write_bytes(content)


def _kill_and_alter(count: int) -> Act:
    """Kill the launcher and all that it started, and alter some of the newest checkpoints.

    Parameters
    ----------
    count: the number of checkpoints that are altered before the run goes on.
    """

    def act(run: Running) -> None:
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait()
        run.end()
        while run.members():
            time.sleep(0.02)
        draw = random.Random(run.run_dir.name + str(run.epochs_done))
        for file in run.checkpoints[:count]:
            _alter(file, draw)

    return act


_LINK, _BOTH = "a link", "a link and a server"
_KILL, _STOP, _TERM = signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM
_ALONE, _TWO = "a server beside it", "two servers of a part"

CASES: Final = {
    case.name: case
    for case in (
        Case("a rank is killed", _signal(_KILL, "rank"), "error", _RANK),
        Case("a rank is killed, restarts", _signal(_KILL, "rank"), "recovered", words=RESTARTS),
        Case("a rank crashes, restarts", _signal(signal.SIGSEGV, "rank"), "recovered",
             words=RESTARTS),
        Case("a rank is told to end", _signal(_TERM, "rank"), "error", _RANK),
        Case("a rank is stopped", _signal(_STOP, "rank"), "error", _RANK),
        Case("a rank is stopped, restarts", _signal(_STOP, "rank"), "recovered", words=RESTARTS),
        Case("a rank is stopped for 2 s", _pause("rank"), "recovered", seconds=_PAUSE_SECONDS),
        Case("a server is killed", _signal(_KILL, "server"), "error", _SERVER),
        Case("a server is killed, restarts", _signal(_KILL, "server"), "recovered",
             words=RESTARTS),
        Case("a server is told to end, restarts", _signal(_TERM, "server"), "recovered",
             words=RESTARTS),
        Case("a server is stopped", _signal(_STOP, "server"), "error", _SERVER),
        Case("a server is stopped, restarts", _signal(_STOP, "server"), "recovered",
             words=RESTARTS),
        Case("a server is stopped for 2 s", _pause("server"), "recovered",
             seconds=_PAUSE_SECONDS),
        Case("a server that it did not start is killed", _signal(_KILL, "server"), "error",
             _SERVER, serving_by=_ALONE),
        Case("a server is killed and returns at its address", _kill_and_return, "recovered",
             _SERVER, serving_by=_ALONE),
        Case("one of two servers of a part is killed", _signal(_KILL, "server"), "recovered",
             serving_by=_TWO),
        Case("one of two servers of a part is stopped", _signal(_STOP, "server"), "recovered",
             serving_by=_TWO),
        Case("the launcher is killed, and started again", _signal(_KILL, "launcher"), "recovered",
             kills_launcher=True, goes_on=True),
        Case("the launcher is stopped for 2 s", _pause("launcher"), "recovered",
             seconds=_PAUSE_SECONDS),
        Case("the launcher is told to end", _signal(_TERM, "launcher"), "error", _TOLD),
        Case("the launcher is told to end, restarts", _signal(_TERM, "launcher"), "error", _TOLD,
             words=RESTARTS),
        Case("Ctrl-C", _interrupt, "error", _TOLD),
        Case("the link to a server is down for 5 s", _go_down_for_a_while, "recovered",
             serving_by=_LINK, seconds=_LINK_SECONDS),
        Case("the link to a server is down for good", _link(lambda run: run.link.go_down()),
             "error", _SERVER, serving_by=_LINK),
        Case("the link to one of two servers is down for good",
             _link(lambda run: run.link.go_down()), "recovered", serving_by=_BOTH),
        Case("connections are cut", _link(lambda run: run.link.proxy.cut()), "recovered",
             serving_by=_LINK),
        Case("connections between ranks are cut", _cut_ranks, "recovered"),
        Case("a bit flips on the way", _link(lambda run: run.link.flip_a_bit()), "either", _SERVER,
             serving_by=_LINK),
        Case("replies at 5 kB/s", _link(lambda run: run.link.slow_down(_SLOW)), "either", _SERVER,
             serving_by=_LINK),
        Case("a server accepts and never answers", _reach(lambda run: run.world.silent.address),
             "error", _SERVER, serving_by=_LINK),
        Case("one of two servers accepts and never answers",
             _reach(lambda run: run.world.silent.address), "recovered", serving_by=_BOTH),
        Case("a server answers with random bytes", _reach(lambda run: run.world.babbling.address),
             "error", _SERVER, serving_by=_LINK),
        Case("one of two servers answers with random bytes",
             _reach(lambda run: run.world.babbling.address), "recovered", serving_by=_BOTH),
        Case("a server of another graph takes its address",
             _reach(lambda run: run.world.others[run.place]), "error", _SERVER, serving_by=_LINK),
        Case("a server of another part takes its address",
             _reach(lambda run: run.world.servers[1 - run.place]), "error", _SERVER,
             serving_by=_LINK),
        Case("the disk is full", _fill_disk, "error", _DISK, small_disk=True),
        Case("the disk is full while a checkpoint is written", _fill_disk_while_writing, "error",
             _DISK, small_disk=True),
        Case("killed, and the newest checkpoint is altered", _kill_and_alter(1), "recovered",
             kills_launcher=True, goes_on=True),
        Case("killed, and all checkpoints are altered", _kill_and_alter(9), "recovered",
             kills_launcher=True, goes_on=True),
        Case("no more memory than it has", _bound_memory, "either", _MEMORY, bounded_memory=True),
    )
}  # fmt: skip
"""by name"""
