"""What happens to runs, and which end is right: recovered, or a named error within the deadline."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.faults.links import Link, cut_connections
from benchmarks.faults.running import Running

Act = Callable[[Running], None]
RESUME: Final = ("--train.resume", "auto")
PAUSE_SECONDS: Final = 2.0
LINK_SECONDS: Final = 5.0
_AWAY_SECONDS: Final = 0.5
_SLOW: Final = 5e3
"""bytes per second"""
_WRITING_SECONDS: Final = 3.0

_CASES: Final = """
a rank is killed                                | kill rank        | error     | rank   |
a rank is killed, restarts                      | kill rank        | recovered |        | restarts
a rank crashes, restarts                        | crash rank       | recovered |        | restarts
a rank is told to end                           | end rank         | error     | rank   |
a rank is stopped                               | stop rank        | error     | rank   |
a rank is stopped, restarts                     | stop rank        | recovered |        | restarts
a rank is stopped for 2 s                       | pause rank       | recovered |        |
a server is killed                              | kill server      | error     | server |
a server is killed, restarts                    | kill server      | recovered |        | restarts
a server is told to end, restarts               | end server       | recovered |        | restarts
a server is stopped                             | stop server      | error     | server |
a server is stopped, restarts                   | stop server      | recovered |        | restarts
a server is stopped for 2 s                     | pause server     | recovered |        |
a server that it did not start is killed        | kill server      | error     | server | alone
a server is killed and returns at its address   | kill, return     | recovered | server | alone
one of two servers of a part is killed          | kill server      | recovered |        | two
one of two servers of a part is stopped         | stop server      | recovered |        | two
the launcher is killed, and started again       | kill launcher    | recovered |        | goes_on
the launcher is stopped for 2 s                 | pause launcher   | recovered |        |
the launcher is told to end                     | end launcher     | error     | told   |
the launcher is told to end, restarts           | end launcher     | error     | told   | restarts
Ctrl-C                                          | Ctrl-C           | error     | told   |
the link to a server is down for 5 s            | down for a while | recovered |        | link
the link to a server is down for good           | down             | error     | server | link
the link to one of two servers is down for good | down             | recovered |        | link two
connections are cut                             | cut              | recovered |        | link
connections between ranks are cut               | cut ranks        | error     |        |
connections between ranks are cut, restarts     | cut ranks        | recovered |        | restarts
a bit flips on the way                          | flip a bit       | either    | server | link
replies at 5 kB/s                               | slow down        | either    | server | link
a server accepts and never answers              | lead to silence  | error     | server | link
one of two servers accepts and never answers    | lead to silence  | recovered |        | link two
a server answers with random bytes              | lead to noise    | error     | server | link
one of two servers answers with random bytes    | lead to noise    | recovered |        | link two
a server of another graph takes its address     | lead to a graph  | error     | server | link
a server of another part takes its address      | lead to a part   | error     | server | link
the disk is full                                | fill disk        | error     | disk   | disk
the disk is full while a checkpoint is written  | fill, writing    | error     | disk   | disk
killed, and the newest checkpoint is altered    | alter newest     | recovered |        | goes_on
killed, and all checkpoints are altered         | alter all        | recovered |        | goes_on
no more memory than it has                      | bound memory     | either    | memory | memory
"""
"""A line a case: what happens, how, what a run has to do, what an early end names, and how it runs:
its servers as of :func:`running`, and flags of :class:`Case`."""
_NAMED: Final = {
    "rank": r"(error: |waiting for )rank {place}\b|rank {place} .* (ended|failed)"
    r"|rank {place}\b.*finish",
    "server": r"feature server {place}\b",
    "told": r"ended by SIG|interrupted|told to end",
    "disk": r"No space left|bytes of free space",
    "memory": r"killed by SIGKILL|out of memory|Cannot allocate|\bpid \d+\) ended",
}
"""by word, the pattern that the last line has to have; "{place}" is the rank's or server's index"""


@dataclass(frozen=True)
class Case:
    """A kind of fault.

    Attributes
    ----------
    expected: "recovered", "error" or "either". A run that need not recover may: what happened came
        too late.
    named: pattern of the last line of a run that ends early.
    servers: a set of "alone", "two" and "link", as of :func:`running`.
    restarts: whether the run is allowed three.
    disk, memory: whether it has a small disk, or a bound of memory, of its own, which need root.
    goes_on: whether the launcher is killed, and the same command started again, with
        ``train.resume = "auto"``, after what has ended; then that is what has to recover.
    seconds: how long it lasts, where it does not last for good.
    """

    name: str
    act: Act
    expected: str
    named: str = ""
    servers: frozenset[str] = frozenset()
    restarts: bool = False
    disk: bool = False
    memory: bool = False
    goes_on: bool = False
    seconds: float = 0.0

    @property
    def word(self) -> str:
        """The name as a word of the command line."""
        return re.sub(r"\W+", "-", self.name.lower())

    @property
    def needs_root(self) -> bool:
        """Whether it mounts or bounds anything."""
        return self.disk or self.memory


def _signal(number: signal.Signals, process: str) -> Act:
    """Send a signal to a process; one that is to go on is stopped for a while before."""

    def send(run: Running) -> None:
        pid = run.find(process)
        run.begun = time.monotonic()
        if pid is not None:
            with suppress(ProcessLookupError):
                if number == signal.SIGCONT:
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(PAUSE_SECONDS)
                os.kill(pid, number)

    return send


def _interrupt(run: Running) -> None:
    os.killpg(run.process.pid, signal.SIGINT)


def _kill_and_return(run: Running) -> None:
    assert run.victim is not None
    run.victim.kill()
    run.victim.wait()
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
    time.sleep(LINK_SECONDS)
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
            alter(file, draw)

    return act


def alter(file: Path, draw: random.Random) -> None:
    """Flip a bit of a file, or cut it short."""
    content = bytearray(file.read_bytes())
    place = draw.randrange(len(content))
    if draw.random() < 0.5:
        content[place] ^= 1 << draw.randrange(8)
    else:
        del content[place:]
    file.write_bytes(content)


_SIGNALS: Final = {
    "kill": signal.SIGKILL, "crash": signal.SIGSEGV, "end": signal.SIGTERM,
    "stop": signal.SIGSTOP, "pause": signal.SIGCONT,
}  # fmt: skip
_ACTS: Final[dict[str, Act]] = {
    f"{verb} {process}": _signal(number, process)
    for verb, number in _SIGNALS.items() for process in ("rank", "server", "launcher")
} | {
    "kill, return": _kill_and_return,
    "Ctrl-C": _interrupt,
    "down": _link(lambda link, _: link.go_down()),
    "down for a while": _link(_go_down_for_a_while),
    "cut": _link(lambda link, _: link.cut()),
    "cut ranks": _cut_ranks,
    "flip a bit": _link(lambda link, _: link.flip_a_bit()),
    "slow down": _link(lambda link, _: link.slow_down(_SLOW)),
    "lead to silence": _link(lambda link, run: link.lead_to(run.world.silent.address)),
    "lead to noise": _link(lambda link, run: link.lead_to(run.world.noisy.address)),
    "lead to a graph": _link(lambda link, run: link.lead_to(run.world.others[run.place])),
    "lead to a part": _link(lambda link, run: link.lead_to(run.world.servers[1 - run.place])),
    "fill disk": _fill_disk,
    "fill, writing": _fill_disk_while_writing,
    "alter newest": _kill_and_alter(1),
    "alter all": _kill_and_alter(9),
    "bound memory": _bound_memory,
}  # fmt: skip
_SERVERS: Final = {"alone", "two", "link"}


def _read_cases() -> Iterator[Case]:
    for line in _CASES.strip().splitlines():
        name, act, expected, named, words = (cell.strip() for cell in line.split("|"))
        flags: dict[str, Any] = {word: True for word in words.split() if word not in _SERVERS}
        lasts = {"pause": PAUSE_SECONDS, "down for": LINK_SECONDS}
        seconds = next((lasts[verb] for verb in lasts if act.startswith(verb)), 0.0)
        servers = frozenset(words.split()) & _SERVERS
        yield Case(name, _ACTS[act], expected, _NAMED.get(named, ""), servers, seconds=seconds,
                   **flags)  # fmt: skip


CASES: Final = {case.name: case for case in _read_cases()}
"""by name"""
