"""Interrupts commands that write folders, at random moments, and looks at what is left.

`dataset make`, imports of CSV and Parquet, `partition` with METIS and `predict` are killed, told to
end, stopped (and then go on, or are killed), or their disk fills up. Afterwards nothing may still
run, stderr may have no traceback, and ``--out`` may hold nothing or the whole result. The same
command must then succeed with the files of a run that nothing happens to, and leave nothing beside
them. A disk of its own needs root; without root that kind is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.faults.outcomes import WRONG, Outcome
from benchmarks.faults.watched import ROOT, Watched, Wrong
from benchmarks.processes import HOPPER

CODES: Final[dict[str, set[int]]] = {
    "kill": {-9}, "term": {143, -15}, "hup": {129, -1}, "stop, go on": set(), "stop, kill": {-9},
    "full disk": {1},
}  # fmt: skip
"""By kind, the exit codes of an interrupted command, beside 0; -15 and -1 while Python starts."""
_FULL_DISK: Final = "full disk"
_STOPPED_SECONDS: Final = 1.0
_END_SECONDS: Final = 90.0
_GONE_SECONDS: Final = 20.0
"""How long a rank may take to see that its parent was killed: it first imports torch."""
_DISK: Final = "256m"
_EXPECTED: Final = "nothing or all, then all"


@dataclass(frozen=True)
class Trial:
    """One interruption: at which share of the seconds that the command takes, and whether signals
    go to all processes of the group, as those of a terminal do."""

    number: int
    command: str
    kind: str
    moment: float
    to_all: bool


def commands(world: Path) -> dict[str, list[str]]:
    """Return the words of each command without its ``--out``."""
    divide = ["--servers", "2", "--locality-roots", "0", "--backend", "pymetis"]
    return {
        "dataset make": ["dataset", "make", "arxiv-like", "--scale", "0.2", "--feature-dim", "32"],
        "import csv": ["dataset", "import", "csv", str(world / "csv")],
        "import parquet": ["dataset", "import", "parquet", str(world / "parquet")],
        "partition": ["partition", str(world / "graph"), *divide],
        "predict": ["predict", str(world / "run")],
    }


def make_world(world: Path) -> None:
    """Make the tables, the graph and the trained run that the commands read."""
    import pyarrow
    from pyarrow import csv, parquet

    generator = np.random.default_rng(0)
    nodes, edges = 20_000, 200_000
    tables = {
        "nodes": {"id": np.arange(nodes)} | {f"x{n}": generator.random(nodes) for n in range(8)},
        "edges": {end: generator.integers(0, nodes, edges) for end in ("src", "dst")},
    }
    for kind, write in (("csv", csv.write_csv), ("parquet", parquet.write_table)):
        (world / kind).mkdir()
        for name, columns in tables.items():
            write(pyarrow.table(columns), str(world / kind / f"{name}.{kind}"))
    words = commands(world)
    for command, out in (("dataset make", "graph"), ("partition", "parts")):
        subprocess.run([*HOPPER, *words[command], "--out", str(world / out)], check=True, cwd=ROOT)
    config = {"data": {"partitioned": str(world / "parts")}, "model": {"layers": 2, "hidden": 16},
              "sampler": {"fanouts": [5, 5]}, "train": {"engine": "zero_hop", "epochs": 1,
              "run_dir": str(world / "run"), "threads": 1}}  # fmt: skip
    (world / "config.json").write_text(json.dumps(config))
    subprocess.run([*HOPPER, "train", str(world / "config.json")], check=True, cwd=ROOT)


def checksums(folder: Path) -> dict[str, str]:
    """Return the checksum of every file of a folder, by name."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip


class Command(Watched):
    """A command whose ``--out`` lies in its folder."""

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        super().__init__(folder)
        self.out = folder / "out"
        self._words = [*words, "--out", str(self.out)]

    def begin(self) -> None:
        """Start the command, with a new log."""
        self.log.unlink(missing_ok=True)
        self.start(*self._words)

    def finish(self) -> int:
        """Wait for the command and all that it started, and return its exit code."""
        code = self.await_end(_END_SECONDS)
        self.await_nothing_left(_GONE_SECONDS)
        return code

    def run_again(self, right: Mapping[str, str]) -> None:
        """Run the command undisturbed: it has to write the right files, and nothing else."""
        self.begin()
        if code := self.finish():
            raise Wrong(f"the next start ends with {code}: {self.text[-600:]}")
        self.check_files()
        self.check(right)
        if left := [path.name for path in self.folder.iterdir() if path != self.out]:
            raise Wrong(f"left after the next start: {left}")

    def check(self, right: Mapping[str, str]) -> None:
        """Compare the files with those of a run that nothing happened to; "" means any content."""
        actual = checksums(self.out)
        for name in sorted(actual.keys() | right.keys()):
            if name not in actual or right.get(name) not in ("", actual[name]):
                raise Wrong(f"--out: {name} is missing, differs, or should not be there")


def interrupt(command: Command, trial: Trial) -> None:
    """Let happen to a command what the trial says."""

    def send(number: signal.Signals, to_all: bool) -> None:
        with suppress(ProcessLookupError):
            (os.killpg if to_all else os.kill)(command.process.pid, number)

    if trial.kind == _FULL_DISK:
        with (command.folder / "ballast").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
    if trial.kind.startswith("stop"):
        send(signal.SIGSTOP, trial.to_all)
        time.sleep(_STOPPED_SECONDS)
    if trial.kind == "stop, go on":
        send(signal.SIGCONT, trial.to_all)
    elif trial.kind.endswith("kill"):
        send(signal.SIGKILL, to_all=False)
    elif trial.kind in ("term", "hup"):
        send(signal.Signals[f"SIG{trial.kind.upper()}"], trial.to_all)


def attempt(command: Command, trial: Trial, seconds: float, right: Mapping[str, str]) -> str:
    """Start a command, interrupt it, look at what is left, and run it again. Return the outcome."""
    command.begin()
    with suppress(subprocess.TimeoutExpired):
        command.process.wait(trial.moment * seconds)
    if command.process.poll() is None:
        interrupt(command, trial)
    code = command.finish()
    if code not in CODES[trial.kind] | {0} or "Traceback" in command.text:
        raise Wrong(f"exit code {code}: {command.text[-600:]}")
    expected = "error: " if code == 1 else "ended by SIG" if code > 1 else ""
    if expected not in command.last_line:
        raise Wrong(f"the last line is {command.last_line!r}")
    (command.folder / "ballast").unlink(missing_ok=True)
    if command.out.exists() and (code == 0 or trial.command != "predict"):
        command.check(right)
        shutil.rmtree(command.out)
    command.run_again(right)
    return f"ended with {code}, then all" if code else "went on to its end"


def measure(folder: Path, words: Sequence[str]) -> tuple[float, dict[str, str]]:
    """Run a command twice; return its seconds, and the checksums of files, "" where they vary."""
    seen: list[dict[str, str]] = []
    for _ in range(2):
        command, begun = Command(folder, words), time.monotonic()
        with command.folders():
            command.begin()
            if code := command.finish():
                raise Wrong(f"{words}: ends with {code}: {command.text}")
            seconds = time.monotonic() - begun
            seen.append(checksums(command.out))
    first, second = seen
    return seconds, {name: one if second[name] == one else "" for name, one in first.items()}


def draw_interruptions(runs: int, seed: int, names: Sequence[str]) -> list[Trial]:
    """Draw commands, kinds and moments, each pair of command and kind about as often."""
    generator = random.Random(seed)  # not for secrets
    kinds = [kind for kind in CODES if os.geteuid() == 0 or kind != _FULL_DISK]
    pairs = [(name, kind) for name in names for kind in kinds]
    drawn: list[tuple[str, str]] = []
    while len(drawn) < runs:
        drawn += generator.sample(pairs, len(pairs))
    return [
        Trial(number, *pair, generator.uniform(0, 1.05), generator.random() < 0.5)
        for number, pair in enumerate(drawn[:runs])
    ]


def interrupt_commands(world: Path, runs: int, seed: int, at_once: int) -> Iterator[Outcome]:
    """Interrupt commands in a new folder, ``at_once`` of them side by side."""
    world.mkdir()
    make_world(world)
    words = commands(world)
    known = {name: measure(world / "measured", line) for name, line in words.items()}

    def run(trial: Trial) -> Outcome:
        command, begun = (
            Command(world / f"trial-{trial.number}", words[trial.command]),
            time.monotonic(),
        )
        with command.folders(_DISK if trial.kind == _FULL_DISK else ""):
            try:
                outcome = attempt(command, trial, *known[trial.command])
            except Wrong as wrong:
                outcome = f"{WRONG}{wrong}"
            finally:
                command.end()
        target = f"{trial.command}, at {trial.moment:.2f} of its time"
        seconds = time.monotonic() - begun
        return Outcome(f"interruption: {trial.kind}", target, _EXPECTED, outcome, seconds)

    with ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(run, draw_interruptions(runs, seed, list(words)))
