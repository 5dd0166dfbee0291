"""Interrupts commands that write folders, at random moments, and looks at what is left.

usage: python -m benchmarks.faults.interruptions --out DIR [--runs 150] [--seed 0] [--at-once 2]

`dataset make`, imports of CSV and Parquet, `partition` with METIS and `predict` are killed, told to
end, stopped (and then go on, or are killed), or their disk fills up. Afterwards nothing may still
run, stderr may have no traceback, and ``--out`` may hold nothing or the whole result. The same
command must then succeed with the files of a run that nothing happens to, and leave nothing beside
them. A disk of its own needs root; without root that kind is left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from hopper.bench.machine import benchmark_header, tell_machine
from hopper.bench.results import format_result
from hopper.scratch import scratch_folder
from hopper.signal_handlers import end_on_signals
from hopper.whole_files import write_text

HOPPER: Final = [sys.executable, "-m", "hopper.cli"]
KINDS: Final = ("kill", "term", "hup", "stop, go on", "stop, kill", "full disk")
CODES: Final = {"kill": {-9}, "term": {143, -15}, "hup": {129, -1}, "stop, go on": set(),
                "stop, kill": {-9}, "full disk": {1}}  # fmt: skip
"""The exit codes of an interrupted command, beside 0; -15 and -1 while Python itself starts."""
_STOPPED_SECONDS: Final = 1.0
_END_SECONDS: Final = 90.0
_GONE_SECONDS: Final = 20.0
"""How long a rank may take to see that its parent was killed: it first imports torch."""
_DISK: Final = "256m"
_ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass
class Trial:
    """One interruption: what is drawn before, and what came out.

    Attributes
    ----------
    moment: as a share of the seconds that the command takes.
    to_all: whether signals go to all processes of the group, as those of a terminal do.
    code: the exit code; 0 where the command had ended before, or goes on after a stop.
    cleaned: whether nothing was left beside ``--out`` at once, before the next start.
    """

    number: int
    command: str
    kind: str
    moment: float
    to_all: bool
    code: int | None = None
    cleaned: bool = False
    last_line: str = ""
    wrong: str = ""


class Wrong(Exception):
    """Something is not as it has to be. The text says what."""


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
        subprocess.run([*HOPPER, *words[command], "--out", str(world / out)], check=True, cwd=_ROOT)
    config = {"data": {"partitioned": str(world / "parts")}, "model": {"layers": 2, "hidden": 16},
              "sampler": {"fanouts": [5, 5]}, "train": {"engine": "zero_hop", "epochs": 1,
              "run_dir": str(world / "run"), "threads": 1}}  # fmt: skip
    (world / "config.json").write_text(json.dumps(config))
    subprocess.run([*HOPPER, "train", str(world / "config.json")], check=True, cwd=_ROOT)


def contents(folder: Path) -> dict[str, str]:
    """Return the checksum of every file of a folder, by name."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip


class Place:
    """A folder of one trial: ``--out`` and all temporary files lie in it."""

    def __init__(self, folder: Path, words: Sequence[str]) -> None:
        self.folder = folder
        self.out, self.temporary = folder / "out", folder / "tmp"
        # On another disk than what the command writes.
        self.errors = folder.with_suffix(".errors")
        self.temporary.mkdir()
        self._command = [*HOPPER, *words, "--out", str(self.out)]

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command in a group of its own."""
        with self.errors.open("wb") as errors:
            return subprocess.Popen(
                self._command, stdout=subprocess.DEVNULL, stderr=errors, cwd=_ROOT,
                start_new_session=True, env=os.environ | {"TMPDIR": str(self.temporary)},
            )  # fmt: skip

    def finish(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the command and all that it started, and return its exit code."""
        try:
            code = process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            raise Wrong(f"still runs after {_END_SECONDS:g} s") from None
        deadline = time.monotonic() + _GONE_SECONDS
        while left := self.members():
            if time.monotonic() > deadline:
                raise Wrong(f"left running: {left[0].cmdline()}")
            time.sleep(0.05)
        return code

    def members(self) -> list[psutil.Process]:
        """Return the processes of the command, which its folder of temporary files tells."""
        members = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_ours = process.environ().get("TMPDIR") == str(self.temporary)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    members.append(process)
        return members

    def leftovers(self) -> list[str]:
        """Return what lies beside ``--out``."""
        known = {"out", "tmp"}
        beside = [path.name for path in self.folder.iterdir() if path.name not in known]
        return sorted([*beside, *(path.name for path in self.temporary.iterdir())])

    def text(self) -> str:
        """Return what the command wrote to stderr, and refuse a traceback."""
        text = self.errors.read_text(errors="replace")
        if "Traceback" in text:
            raise Wrong(f"a traceback: {text[-600:]}")
        return text.strip()


@contextmanager
def own_disk(folder: Path, is_wanted: bool) -> Iterator[None]:
    """Mount a small file system at a folder."""
    if not is_wanted:
        yield
        return
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)  # words of this module
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def interrupt(place: Place, process: subprocess.Popen[bytes], trial: Trial) -> None:
    """Let happen to a command what the trial says."""

    def send(number: signal.Signals, to_all: bool) -> None:
        with suppress(ProcessLookupError):
            (os.killpg if to_all else os.kill)(process.pid, number)

    if trial.kind == "full disk":
        with (place.folder / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(1 << 16))
    elif trial.kind.startswith("stop"):
        send(signal.SIGSTOP, trial.to_all)
        time.sleep(_STOPPED_SECONDS)
        if trial.kind == "stop, kill":
            send(signal.SIGKILL, to_all=False)
        else:
            send(signal.SIGCONT, trial.to_all)
    else:
        number = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "hup": signal.SIGHUP}[trial.kind]
        send(number, trial.to_all and number != signal.SIGKILL)


def attempt(place: Place, trial: Trial, seconds: float, right: Mapping[str, str]) -> None:
    """Start a command, interrupt it, look at what is left, and run it again.

    Parameters
    ----------
    seconds: that the command takes.
    right: the content of the files that it writes; "" for those that differ between runs.
    """
    process = place.start()
    with suppress(subprocess.TimeoutExpired):
        process.wait(trial.moment * seconds)
    if process.poll() is None:
        interrupt(place, process, trial)
    trial.code = place.finish(process)
    if trial.code not in CODES[trial.kind] | {0}:
        raise Wrong(f"exit code {trial.code}: {place.text()[-600:]}")
    trial.last_line = place.text().rpartition("\n")[2] if trial.code else ""
    expected = "error: " if trial.code == 1 else "ended by SIG" if trial.code > 1 else ""
    if expected not in trial.last_line:
        raise Wrong(f"the last line is {trial.last_line!r}")
    (place.folder / "ballast").unlink(missing_ok=True)
    trial.cleaned = not place.leftovers()
    if place.out.exists() and (trial.code == 0 or trial.command != "predict"):
        check(place.out, right)
        shutil.rmtree(place.out)
    if code := place.finish(place.start()):
        raise Wrong(f"the next start ends with {code}: {place.text()[-600:]}")
    place.text()
    check(place.out, right)
    if left := place.leftovers():
        raise Wrong(f"left after the next start: {left}")


def check(out: Path, right: Mapping[str, str]) -> None:
    """Compare the files of a result with those of a run that nothing happened to."""
    found = contents(out)
    for name in sorted(found.keys() | right.keys()):
        if name not in found or name not in right or right[name] not in ("", found[name]):
            raise Wrong(f"--out: {name} is missing, differs, or should not be there")


def measure(folder: Path, words: Sequence[str]) -> tuple[float, dict[str, str]]:
    """Run a command twice; return its seconds, and the content of files that is always the same."""
    seen: list[dict[str, str]] = []
    for _ in range(2):
        folder.mkdir()
        place, begun = Place(folder, words), time.monotonic()
        if code := place.finish(place.start()):
            raise Wrong(f"{words}: ends with {code}: {place.text()}")
        seconds = time.monotonic() - begun
        if left := place.leftovers():
            raise Wrong(f"{words}: leaves {left}")
        seen.append(contents(place.out))
        shutil.rmtree(folder)
    if seen[0].keys() != seen[1].keys():
        raise Wrong(f"{words}: writes other files each time")
    return seconds, {
        name: found if seen[1][name] == found else "" for name, found in seen[0].items()
    }


def draw_trials(runs: int, seed: int, names: Sequence[str]) -> list[Trial]:
    """Draw commands, kinds and moments, each pair of command and kind about as often."""
    generator = random.Random(seed)  # not for secrets
    kinds = KINDS if os.geteuid() == 0 else KINDS[:-1]
    pairs = [(name, kind) for name in names for kind in kinds]
    drawn: list[tuple[str, str]] = []
    while len(drawn) < runs:
        drawn += generator.sample(pairs, len(pairs))
    return [
        Trial(number, *pair, generator.uniform(0, 1.05), generator.random() < 0.5)
        for number, pair in enumerate(drawn[:runs])
    ]


def run_trials(
    world: Path, runs: int, seed: int, at_once: int, done: Callable[[Trial], None]
) -> dict[str, float]:
    """Try all; call ``done`` with each. Return the seconds that each command takes."""
    make_world(world)
    words = commands(world)
    known = {name: measure(world / "measured", line) for name, line in words.items()}

    def run(trial: Trial) -> None:
        folder = world / f"trial-{trial.number}"
        folder.mkdir()
        with own_disk(folder, trial.kind == "full disk"):
            place = Place(folder, words[trial.command])
            try:
                attempt(place, trial, *known[trial.command])
            except Wrong as error:
                trial.wrong = str(error)
            finally:
                for process in place.members():
                    with suppress(psutil.Error):
                        process.kill()
                done(trial)
        shutil.rmtree(folder, ignore_errors=True)

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(run, draw_trials(runs, seed, list(words))))
    return {name: round(seconds, 2) for name, (seconds, _) in known.items()}


def write_page(result: Mapping[str, Any]) -> str:
    """Describe a result: how many interruptions of each kind, and how they ended."""
    trials = result["trials"]
    wrong = [trial for trial in trials if trial["wrong"]]
    lines = [
        "# Interruptions of commands that write folders", "",
        f"`{result['command']}`", "", tell_machine(result["machine"]), "",
        f"{len(trials)} interruptions, {len(wrong)} wrong. In brackets: the command had ended "
        "before, or went on to its end.", "",
        f"| command | {' | '.join(KINDS)} |", f"|---|{'---:|' * len(KINDS)}",
    ]  # fmt: skip
    count = Counter((trial["command"], trial["kind"]) for trial in trials)
    whole = Counter((trial["command"], trial["kind"]) for trial in trials if trial["code"] == 0)
    for name in result["seconds"]:
        cells = [f"{count[name, kind]} ({whole[name, kind]})" for kind in KINDS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    told = [t for t in trials if t["kind"] in ("term", "hup", "full disk") and t["code"]]
    lines += ["", f"After {sum(t['cleaned'] for t in told)} of {len(told)} signals and full disks "
              "that ended a command, nothing was left at once; after all others, once it was "
              "started again.", ""]  # fmt: skip
    lines += [f"- {trial['command']}, {trial['kind']}: {trial['wrong']}" for trial in wrong]
    return "\n".join([*lines, ""])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    result = benchmark_header("interruptions") | {
        "command": f"python -m benchmarks.faults.interruptions --runs {options.runs} --seed "
        f"{options.seed} --at-once {options.at_once}", "trials": [],
    }  # fmt: skip

    def done(trial: Trial) -> None:
        result["trials"].append(asdict(trial))
        print(f"{len(result['trials'])} of {options.runs}: {trial.command}, {trial.kind}: "
              f"{trial.wrong or trial.code}", flush=True)  # fmt: skip

    with end_on_signals(), scratch_folder("hopper-interruptions-") as world:
        result["seconds"] = run_trials(world, options.runs, options.seed, options.at_once, done)
    write_text(options.out / "result.json", format_result(result))
    write_text(options.out / "README.md", write_page(result))
    return 1 if any(trial["wrong"] for trial in result["trials"]) else 0


if __name__ == "__main__":
    sys.exit(main())
