"""Training runs in separate folders: what they read, who serves them, and their processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.links import Link, Stranger
from benchmarks.faults.serving import await_address, serving, start_server
from hopper.bench.emulate.limits import bound_hosts, remove_limits
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.results import EPOCHS_FILE, SUMMARY_FILE

ROOT = Path(__file__).resolve().parents[2]
SERVERS = 2
CHECKPOINT_EVERY = 3
DISK_BYTES = 3 << 20
_UNBOUNDED = 64 << 30


@dataclass(frozen=True)
class Limits:
    """The deadlines of a run, and what it may take beyond them, in seconds.

    Attributes
    ----------
    start, wait: ``cluster.start_timeout_seconds``, ``cluster.timeout_seconds``.
    """

    start: float = 15.0
    wait: float = 8.0
    grace: float = 8.0


@dataclass
class World:
    """What runs share: a graph over two servers, and its servers, which nothing happens to.

    Attributes
    ----------
    parts: the partitioned directory.
    servers: "host:port" of one feature server a part.
    others: the same of a graph of the same shape.
    silent, babbling: listen, and are no feature servers.
    """

    folder: Path
    parts: Path
    limits: Limits
    epochs: int
    servers: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    silent: Stranger = field(default_factory=lambda: Stranger(speaks=False))
    babbling: Stranger = field(default_factory=lambda: Stranger(speaks=True))
    memory: threading.Lock = field(default_factory=threading.Lock)
    """held by the one run that has its memory bounded"""

    def config(self, place: Path) -> dict[str, Any]:
        """Return the configuration of a run in the folder ``place``."""
        return {
            "data": {"partitioned": str(place / "parts")},
            "model": {"layers": 2, "hidden": 16, "dropout": 0.3},
            "sampler": {"fanouts": [5, 5]},
            "train": {
                "engine": "hop", "batch_size": 32, "epochs": self.epochs,
                "checkpoint_every": CHECKPOINT_EVERY, "run_dir": str(place / "run"), "threads": 1,
            },
            "hop": {"merge": "off"},
            "cluster": {
                "start_timeout_seconds": self.limits.start, "timeout_seconds": self.limits.wait,
            },
        }  # fmt: skip


@contextmanager
def make_world(
    folder: Path, parts: Path, other_parts: Path, limits: Limits, epochs: int
) -> Iterator[World]:
    """Start the servers that runs share, and end them afterwards."""
    world = World(folder, parts, limits, epochs)
    with ExitStack() as stack:
        stack.callback(world.silent.close)
        stack.callback(world.babbling.close)
        for partitioned, addresses in ((parts, world.servers), (other_parts, world.others)):
            for index in range(SERVERS):
                port_file = folder / f"{partitioned.name}-{index}.json"
                addresses.append(stack.enter_context(serving(partitioned, index, port_file))[1])
        yield world


class Running:
    """A run that has been started.

    Attributes
    ----------
    place: index of the rank, the server or the part that something happens to.
    begun: when it happened.
    returned_late: whether a server that returned took so long that waiting for it may have ended.
    link: before the server, in runs that have one.
    victim: a feature server of its own that it did not start itself.
    """

    def __init__(self, world: World, name: str, place: int) -> None:
        self.world, self.place = world, place
        self.folder = world.folder / name
        self.run_dir = self.folder / "run"
        # Logs and port files lie on another disk than the run's files.
        self.log, self.temporary = world.folder / f"{name}.log", world.folder / f"{name}-tmp"
        self.begun = 0.0
        self.returned_late = False
        self.link: Link | None = None
        self.victim: subprocess.Popen[str] | None = None
        self.victim_address = ""
        self.cgroups: Sequence[Path] = ()
        self.process: subprocess.Popen[bytes]

    @property
    def pid_of_victim(self) -> int | None:
        """The process id of the victim. None if the run has none."""
        return None if self.victim is None else self.victim.pid

    def start(self, *words: str) -> None:
        """Start ``hopper train``. Its output is appended to the same log."""
        command = [sys.executable, "-m", "hopper.cli", "train", str(self.folder / "config.json")]
        command += words
        if self.cgroups:
            enter = "".join(f"echo $$ > {group / 'cgroup.procs'} && " for group in self.cgroups)
            command = ["sh", "-c", f'{enter}exec "$@"', "sh", *command]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, cwd=ROOT, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary)},
            )  # fmt: skip

    @property
    def serves_elsewhere(self) -> bool:
        """Whether it starts no feature servers itself."""
        return self.link is not None or self.victim is not None

    def return_victim(self) -> None:
        """Start the killed server again, at the same address."""
        gone = time.monotonic()
        port_file = self.folder / f"server-{self.place}.json"
        self.victim = start_server(
            self.folder / "parts", self.place, port_file, listen=self.victim_address
        )
        await_address(self.victim, port_file)
        self.returned_late = time.monotonic() - gone > self.world.limits.wait / 2

    @property
    def text(self) -> str:
        """The output of the run and of its feature servers."""
        logs = [self.log, *sorted((self.run_dir / "servers").glob("*.log"))]
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    @property
    def epochs_done(self) -> int:
        """Number of epochs in the run's file."""
        try:
            return (self.run_dir / EPOCHS_FILE).read_bytes().count(b"\n")
        except OSError:
            return 0

    @property
    def has_met(self) -> bool:
        """Whether its ranks have met: rank 0 holds the folder."""
        try:
            return bool((self.run_dir / ".rank-0.lock").read_bytes())
        except OSError:
            return False

    @property
    def has_summary(self) -> bool:
        """Whether it has written its results."""
        return (self.run_dir / SUMMARY_FILE).exists()

    @property
    def losses(self) -> list[list[float]]:
        """The losses of all iterations, by epoch."""
        lines = (self.run_dir / EPOCHS_FILE).read_text().splitlines()
        return [json.loads(line)["iteration_losses"] for line in lines]

    @property
    def checkpoints(self) -> list[Path]:
        """Files of models, newest first."""
        files = CheckpointFiles(self.run_dir)
        return [files.model(step) for step in files.steps]

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return any(CheckpointFiles(self.run_dir).folder.glob("*.unfinished"))

    def members(self) -> list[psutil.Process]:
        """Return every process of the run except the launcher and those started beside it. The
        run's folder in the command line tells them."""
        known_pids = (self.process.pid, os.getpid(), self.pid_of_victim)
        members = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                named = any(f"{self.folder}/" in word for word in process.cmdline())
                gone = process.status() == psutil.STATUS_ZOMBIE
                if named and process.pid not in known_pids and not gone:
                    members.append(process)
        return members

    def ranks(self) -> list[psutil.Process]:
        """Return the ranks that live."""
        ranks = []
        for process in self.members():
            with suppress(psutil.Error):
                if _place_of(process, "rank") is not None:
                    ranks.append(process)
        return ranks

    def find(self, role: str) -> int | None:
        """Find the process id of the "launcher", or of the "rank" or "server" at the place, once it
        is there. Return None if the run ends before."""
        if role == "launcher":
            return self.process.pid
        if role == "server" and self.victim is not None:
            return self.victim.pid
        while self.process.poll() is None:
            for process in self.members():
                with suppress(psutil.Error):
                    if _place_of(process, role) == str(self.place):
                        return int(process.pid)
            time.sleep(0.02)
        return None

    def end(self) -> None:
        """Kill the remaining processes of the run."""
        for process in self.members():
            with suppress(psutil.Error):
                process.kill()
        self.process.kill()
        self.process.wait()


def _place_of(process: psutil.Process, role: str) -> str | None:
    words = process.cmdline()
    if role == "rank" and "hopper.train" in words:
        return process.environ().get("RANK")
    if role == "server" and "cache_server" in words:
        return str(words[words.index("--server") + 1])
    return None


@contextmanager
def running(
    world: World,
    name: str,
    place: int,
    *,
    serving_by: str = "itself",
    seed: int = 0,
    small_disk: bool = False,
    bounded_memory: bool = False,
    words: Sequence[str] = (),
) -> Iterator[Running]:
    """Start a run. Kill it afterwards, and remove what it wrote except its log.

    Parameters
    ----------
    serving_by: "itself"; "a server beside it"; "two servers of a part"; "a link" before a server;
        "a link and a server".
    small_disk: whether its folder is a file system of 3 MiB. bounded_memory: whether it is in a
        cgroup of its own, without a bound at first. Both need root.
    words: of ``hopper train``, beside the configuration.
    """  # fmt: skip
    run = Running(world, name, place)
    run.folder.mkdir()
    run.temporary.mkdir()
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, run.folder, ignore_errors=True)
        stack.callback(shutil.rmtree, run.temporary, ignore_errors=True)
        if small_disk:
            size = f"size={DISK_BYTES}"
            _as_root("mount", "-t", "tmpfs", "-o", size, "tmpfs", str(run.folder))
            stack.callback(_as_root, "umount", "-l", str(run.folder))
        if bounded_memory:
            stack.enter_context(world.memory)
            stack.callback(remove_limits)
            [run.cgroups] = bound_hosts(1, None, _UNBOUNDED)
        (run.folder / "parts").symlink_to(world.parts)
        config = world.config(run.folder)
        config["cluster"]["servers"] = _servers(run, serving_by, seed, stack)
        (run.folder / "config.json").write_text(json.dumps(config))
        run.start(*words)
        stack.callback(run.end)
        yield run


def _servers(run: Running, serving_by: str, seed: int, stack: ExitStack) -> list[Any]:
    """Return ``cluster.servers`` of a run, and start the servers that it needs."""
    shared = run.world.servers
    if serving_by == "itself":
        return []
    if "link" in serving_by:
        run.link = stack.enter_context(Link(shared[run.place], seed))
        rank_address = run.link.proxy.address
    else:
        port_file = run.folder / f"server-{run.place}.json"
        run.victim = start_server(run.folder / "parts", run.place, port_file)
        stack.callback(_end_victim, run)
        rank_address = run.victim_address = await_address(run.victim, port_file)
    is_alone = serving_by in ("a server beside it", "a link")
    return [
        (rank_address if is_alone else [rank_address, core]) if index == run.place else core
        for index, core in enumerate(shared)
    ]


def _end_victim(run: Running) -> None:
    assert run.victim is not None
    run.victim.kill()
    run.victim.communicate()


def _as_root(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
