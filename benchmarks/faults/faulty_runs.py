"""Training runs that something happens to, at a moment that is drawn."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from serving import serving

from tests.tcp_proxy import TcpProxy

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS, WAIT_SECONDS, GRACE_SECONDS = 15.0, 8.0, 5.0
"""cluster.start_timeout_seconds, cluster.timeout_seconds, and what a run may take beyond them"""
GIVEN_UP_SECONDS = 150.0
DISK_BYTES = 3 << 20
RESUMED = 4
"""every so manyth run that did not end well is resumed"""
SERVERS = 2


@dataclass
class Trial:
    """One run and what happens to it."""

    number: int
    kind: str
    moment: float
    place: int
    """which rank or server"""
    seconds: float = 0.0
    """from the fault to the end of the run's last process"""
    training: bool = False
    exit_code: int = 0
    last_line: str = ""
    resumed: bool = False
    faults: list[str] = field(default_factory=list)


class Wire:
    """What happens to the bytes of one server's replies, from a moment on."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()
        self.kind = ""
        self._draw = random.Random(5)

    def alter(self, data: bytes, _place: int) -> bytes:
        """What the client gets."""
        if not self.begun.is_set():
            return data
        if self.kind == "a bit flips on the way":
            self.begun.clear()
            changed = bytearray(data)
            changed[self._draw.randrange(len(changed))] ^= 1 << self._draw.randrange(8)
            return bytes(changed)
        if self.kind == "the connection is cut":
            self.begun.clear()
            raise OSError("cut")
        if self.kind == "nothing arrives any more":
            self.ended.wait()
        if self.kind == "replies at 5 kB/s":
            self.ended.wait(len(data) / 5e3)
        return data


def _signal(kind: signal.Signals, who: str) -> Callable[[Running], None]:
    def send(run: Running) -> None:
        pids = run.targets(who)
        run.begun = time.monotonic()
        for pid in pids:
            os.kill(pid, kind)

    return send


class Running:
    """A run that has been started."""

    def __init__(self, trial: Trial, command: list[str], run_dir: Path, log: Path) -> None:
        self.trial, self.run_dir, self.log = trial, run_dir, log
        self.wire: Wire | None = None
        self.servers: list[int] = []
        self.addresses: list[str] = []
        """of servers that the run did not start itself, without what happens on the way"""
        self.begun = 0.0
        """when it happened"""
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=ROOT, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    def members(self) -> list[psutil.Process]:
        """Every process of the run but the launcher, by the folder in their command lines."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline()
                named = any(f"{self.run_dir.parent}/" in word for word in words)
                if (named and process.pid not in (self.process.pid, os.getpid())
                        and process.status() != psutil.STATUS_ZOMBIE):  # fmt: skip
                    found.append(process)
        return found

    def targets(self, who: str) -> list[int]:
        """Process ids of the "launcher", or of the trial's "rank" or "server" once it is there."""
        if who == "launcher":
            return [self.process.pid]
        while self.process.poll() is None:
            for process in self.members():
                with suppress(psutil.Error):
                    words = process.cmdline()
                    if who == "rank" and "hopper.train" in words:
                        place = process.environ().get("RANK")
                    elif who == "server" and "cache_server" in words:
                        place = words[words.index("--server") + 1]
                    else:
                        continue
                    if place == str(self.trial.place):
                        return [process.pid]
            time.sleep(0.02)
        return []


def _interrupt(run: Running) -> None:
    with suppress(ProcessLookupError):
        os.killpg(run.process.pid, signal.SIGINT)


def _fill_disk(run: Running) -> None:
    free = shutil.disk_usage(run.run_dir.parent).free
    with suppress(OSError):
        (run.run_dir.parent / "ballast").write_bytes(bytes(free))


KINDS: dict[str, tuple[Callable[[Running], None] | None, str]] = {
    "a rank is killed": (_signal(signal.SIGKILL, "rank"), "rank"),
    "a rank is stopped": (_signal(signal.SIGSTOP, "rank"), "rank"),
    "a rank crashes": (_signal(signal.SIGSEGV, "rank"), "rank"),
    "a rank is told to end": (_signal(signal.SIGTERM, "rank"), "rank"),
    "a server is killed": (_signal(signal.SIGKILL, "server"), "server"),
    "a server is stopped": (_signal(signal.SIGSTOP, "server"), "server"),
    "a server crashes": (_signal(signal.SIGSEGV, "server"), "server"),
    "a server is told to end": (_signal(signal.SIGTERM, "server"), "server"),
    "the launcher is killed": (_signal(signal.SIGKILL, "launcher"), "nobody"),
    "the launcher is told to end": (_signal(signal.SIGTERM, "launcher"), "signal"),
    "Ctrl-C": (_interrupt, "signal"),
    "the disk is full": (_fill_disk, "disk"),
    "a bit flips on the way": (None, "wire"),
    "the connection is cut": (None, "wire"),
    "nothing arrives any more": (None, "wire"),
    "replies at 5 kB/s": (None, "wire"),
}
"""what happens, and what the run's last line has to name"""


class Bench:
    """Where runs are made, and how one goes that nothing happens to."""

    def __init__(self, folder: Path, partitioned: Path) -> None:
        self.folder, self.partitioned = folder, partitioned
        begun = time.monotonic()
        with self._running(Trial(-1, "", 0.0, 0)) as run:
            while run.process.poll() is None and not (run.run_dir / "epochs.jsonl").exists():
                time.sleep(0.05)
            self.start_seconds = time.monotonic() - begun
            code = run.process.wait(GIVEN_UP_SECONDS)
            self.seconds = time.monotonic() - begun
            if code:
                sys.exit(f"a run that nothing happens to ends with {code}: {run.log.read_text()}")
            self.losses = _losses(run.run_dir)
        self.finished = run.run_dir

    def try_one(self, trial: Trial) -> Trial:
        """Start a run, let it happen, and look at what is left."""
        with self._running(trial) as run:
            with suppress(subprocess.TimeoutExpired):
                run.process.wait(trial.moment)
            run.begun = time.monotonic()
            act, named = KINDS[trial.kind]
            if act is None:
                assert run.wire is not None
                run.wire.kind = trial.kind
                run.wire.begun.set()
            else:
                with suppress(ProcessLookupError):
                    act(run)
            trial.training = (run.run_dir / "epochs.jsonl").exists()
            self._judge(trial, run, named)
        shutil.rmtree(run.run_dir.parent, ignore_errors=True)
        return trial

    def _judge(self, trial: Trial, run: Running, named: str) -> None:
        faults, begun = trial.faults, run.begun
        try:
            trial.exit_code = run.process.wait(GIVEN_UP_SECONDS)
        except subprocess.TimeoutExpired:
            faults.append(f"did not end in {GIVEN_UP_SECONDS:g} s")
            return
        killed = trial.kind == "the launcher is killed"
        # Ranks wait for each other once they have come themselves.
        starting = START_SECONDS + self.start_seconds
        limit = (WAIT_SECONDS if trial.training else starting) + GRACE_SECONDS
        left = self._left(run)
        while left and killed and time.monotonic() < begun + limit:
            time.sleep(0.02)
            left = self._left(run)
        trial.seconds = time.monotonic() - begun
        if left:
            faults.append(f"left behind: {[' '.join(each)[:200] for each in left]}")
        ended_well = trial.exit_code == 0
        if trial.seconds > limit and not ended_well:
            faults.append(f"ended after {trial.seconds:.1f} s, more than {limit:g}")
        text = run.log.read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        trial.last_line = lines[-1][-300:] if lines else ""
        if "Traceback" in text:
            faults.append(f"a traceback: {text[-600:]}")
        told_to_end = trial.exit_code == -signal.SIGTERM and named == "signal"
        if ended_well or (told_to_end and (run.run_dir / "summary.json").exists()):
            if _losses(run.run_dir) != self.losses:
                faults.append("ended well with other losses")
        elif told_to_end:
            # Before it has anything to end in order it just ends.
            if lines:
                faults.append(f"ended by SIGTERM, and said {trial.last_line}")
        elif not killed:
            expected = {
                "rank": rf"(error: |waiting for )rank {trial.place}\b|rank {trial.place} .* ended$",
                "server": rf"feature server {trial.place}\b",
                "signal": r"ended by SIG|interrupted|told to end",
                "disk": r"No space left|has 0 bytes of free space",
                "wire": rf"feature server {trial.place}\b",
            }[named]
            if not re.search(expected, trial.last_line):
                faults.append(f"the last line names something else: {trial.last_line}")
            unfinished = [each.name for each in run.run_dir.rglob("*.unfinished")]
            if unfinished:
                faults.append(f"half-written: {unfinished}")
        # Of every kind some: kinds follow each other in the numbers.
        turn = trial.number + trial.number // len(KINDS)
        if not ended_well and turn % RESUMED == 0 and not left:
            trial.resumed = True
            self._resume(trial, run)

    def _resume(self, trial: Trial, run: Running) -> None:
        (run.run_dir.parent / "ballast").unlink(missing_ok=True)
        command = [*_command(run.run_dir.parent / "config.json"), "--train.resume", "auto"]
        if run.addresses:
            command += ["--cluster.servers", json.dumps(run.addresses)]
        done = subprocess.run(
            command,
            cwd=ROOT, capture_output=True, text=True, timeout=GIVEN_UP_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            trial.faults.append(f"does not go on: {done.stderr[-300:]}")
        elif _losses(run.run_dir) != self.losses:
            trial.faults.append("goes on with other losses")

    def _left(self, run: Running) -> list[list[str]]:
        found = []
        for process in run.members():
            with suppress(psutil.Error):
                if process.pid not in run.servers:
                    found.append(process.cmdline())
        return found

    @contextmanager
    def _running(self, trial: Trial) -> Iterator[Running]:
        place = self.folder / f"run-{trial.number}"
        place.mkdir()
        wire: Wire | None = None
        pids: list[int] = []
        addresses: list[str] = []
        with ExitStack() as stack:
            if trial.kind == "the disk is full":
                _command_of_root("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs",
                                 str(place))  # fmt: skip
                stack.callback(_command_of_root, "umount", "-l", str(place))
            parts = place / "parts"
            parts.symlink_to(self.partitioned)
            config: dict[str, Any] = {
                "data": {"partitioned": str(parts)},
                "model": {"layers": 2, "hidden": 16, "dropout": 0.3},
                "sampler": {"fanouts": [5, 5]},
                "train": {
                    "engine": "hop", "batch_size": 32, "epochs": 15, "checkpoint_every": 7,
                    "run_dir": str(place / "run"),
                },
                "hop": {"merge": "off"},
                "cluster": {
                    "start_timeout_seconds": START_SECONDS, "timeout_seconds": WAIT_SECONDS,
                },
            }  # fmt: skip
            if KINDS.get(trial.kind, (None, ""))[1] == "wire":
                wire = Wire()
                for index in range(SERVERS):
                    server = serving(parts, index, place / f"server-{index}.json")
                    process, address = stack.enter_context(server)
                    addresses.append(address)
                    pids.append(process.pid)
                proxy = stack.enter_context(TcpProxy(addresses[trial.place], wire.alter))
                # Before the proxy ends: nothing of it waits any longer.
                stack.callback(wire.ended.set)
                config["cluster"]["servers"] = [
                    proxy.address if index == trial.place else each
                    for index, each in enumerate(addresses)
                ]
            (place / "config.json").write_text(json.dumps(config))
            # What is said goes to another disk than what is written.
            log = self.folder / f"log-{trial.number}"
            run = Running(trial, _command(place / "config.json"), place / "run", log)
            run.wire, run.servers, run.addresses = wire, pids, addresses
            try:
                yield run
            finally:
                for process in run.members():
                    with suppress(psutil.Error):
                        process.kill()
                run.process.kill()
                run.process.wait()


def make_faults(
    bench: Bench, count: int, seed: int, at_once: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Let ``count`` things happen to as many runs, ``at_once`` of them side by side.

    Returns
    -------
    Every trial, and ``faults``, a line each.
    """
    draw = random.Random(seed)
    kinds = [kind for kind in KINDS if kind != "the disk is full" or os.geteuid() == 0]
    trials = [
        Trial(number, kinds[number % len(kinds)], draw.uniform(0.3, bench.seconds),
              draw.randrange(SERVERS))
        for number in range(count)
    ]  # fmt: skip
    draw.shuffle(trials)
    with ThreadPoolExecutor(at_once) as pool:
        for _ in pool.map(bench.try_one, trials):
            advance(1)
    trials.sort(key=lambda each: each.number)
    return {
        "runs": count,
        "at_once": at_once,
        "seconds_of_a_run": round(bench.seconds, 2),
        "seconds_of_its_start": round(bench.start_seconds, 2),
        "start_timeout_seconds": START_SECONDS,
        "timeout_seconds": WAIT_SECONDS,
        "grace_seconds": GRACE_SECONDS,
        "trials": [
            [each.kind, round(each.moment, 2), each.training, round(each.seconds, 2),
             each.exit_code, each.resumed, each.last_line]
            for each in trials
        ],
        "faults": [f"{each.kind}, at {each.moment:.2f} s: {fault}"
                   for each in trials for fault in each.faults],
    }  # fmt: skip


def _losses(run_dir: Path) -> list[list[float]]:
    lines = (run_dir / "epochs.jsonl").read_text().splitlines()
    return [json.loads(line)["iteration_losses"] for line in lines]


def _command(config: Path) -> list[str]:
    return [sys.executable, "-m", "hopper.cli", "train", str(config)]


def _command_of_root(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
