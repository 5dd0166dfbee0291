"""Training runs in separate folders: what they read, who serves them, and their processes."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.links import Link, NoServer
from benchmarks.faults.watched import Watched, serving
from benchmarks.processes import bounded_group
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.results import EPOCHS_FILE, SUMMARY_FILE

SERVERS = 2
CHECKPOINT_EVERY = 3
SMALL_DISK = "3m"
_UNBOUNDED = 64 << 30


@dataclass(frozen=True)
class Limits:
    """The deadlines of a run (``cluster.start_timeout_seconds`` and ``cluster.timeout_seconds``),
    and what it may take beyond them, in seconds."""

    start: float = 15.0
    wait: float = 8.0
    grace: float = 8.0


@dataclass
class World:
    """What runs share: a graph over two servers, and its servers, which nothing happens to.

    Attributes
    ----------
    servers, others: addresses of one feature server a part, and of another graph's.
    silent, noisy: listen, and are no feature servers.
    memory: held by the one run that has its memory bounded.
    """

    folder: Path
    parts: Path
    limits: Limits
    epochs: int
    servers: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    silent: NoServer = field(default_factory=lambda: NoServer(speaks=False))
    noisy: NoServer = field(default_factory=lambda: NoServer(speaks=True))
    memory: threading.Lock = field(default_factory=threading.Lock)

    def config(self, place: Path) -> dict[str, Any]:
        """Return the configuration of a run in a folder."""
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
        stack.callback(world.noisy.close)
        for partitioned, addresses in ((parts, world.servers), (other_parts, world.others)):
            for index in range(SERVERS):
                port_file = folder / f"{partitioned.name}-{index}.json"
                addresses.append(stack.enter_context(serving(partitioned, index, port_file))[1])
        yield world


class Running(Watched):
    """A training run that has been started.

    Attributes
    ----------
    place: index of the rank, the server or the part that something happens to.
    begun: when it happened.
    returned_late: whether a server that returned took so long that waiting for it may have ended.
    link: before the server, in runs that have one.
    victim: a feature server of its own that it did not start itself.
    """

    def __init__(self, world: World, name: str, place: int, stack: ExitStack) -> None:
        super().__init__(world.folder / name)
        self.world, self.place, self._stack = world, place, stack
        self.run_dir = self.folder / "run"
        self.begun = 0.0
        self.returned_late = False
        self.link: Link | None = None
        self.victim: subprocess.Popen[str] | None = None
        self._victim_address = "127.0.0.1:0"

    def train(self, *words: str) -> None:
        """Start ``hopper train``."""
        self.start("train", str(self.folder / "config.json"), *words)

    def start_victim(self) -> str:
        """Start the server that is not the run's own, or start it again at the same address."""
        gone = time.monotonic()
        context = serving(
            self.folder / "parts", self.place, self.folder / f"server-{self.place}.json",
            listen=self._victim_address,
        )  # fmt: skip
        self.victim, self._victim_address = self._stack.enter_context(context)
        self.returned_late = time.monotonic() - gone > self.world.limits.wait / 2
        return self._victim_address

    @property
    def text(self) -> str:
        """What the run and its feature servers wrote."""
        logs = sorted((self.run_dir / "servers").glob("*.log"))
        return super().text + "".join(log.read_text(errors="replace") for log in logs)

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

    def ranks(self) -> list[psutil.Process]:
        """Return the ranks that live."""
        return [process for process in self.members() if _place_of(process, "rank") is not None]

    def find(self, role: str) -> int | None:
        """Find the process id of the "launcher", or of the "rank" or "server" at the place, once it
        is there; None if the run ends before."""
        if role == "launcher":
            return self.process.pid
        if role == "server" and self.victim is not None:
            return self.victim.pid
        while self.process.poll() is None:
            for process in self.members():
                if _place_of(process, role) == str(self.place):
                    return int(process.pid)
            time.sleep(0.02)
        return None


def _place_of(process: psutil.Process, role: str) -> str | None:
    with suppress(psutil.Error):
        words, name = process.cmdline(), process.name()
        if name.startswith("hopper rank " if role == "rank" else "cache_server "):
            return name.split()[-1]
        if role == "server" and "cache_server" in words:
            return str(words[words.index("--server") + 1])
    return None


@contextmanager
def running(
    world: World,
    name: str,
    place: int,
    *words: str,
    servers: Collection[str] = (),
    seed: int = 0,
    small_disk: bool = False,
    bounded_memory: bool = False,
) -> Iterator[Running]:
    """Start a run. Kill it afterwards, and remove what it wrote except its log.

    Parameters
    ----------
    servers: "alone": the server of a part is not started by the run; "two": nor are the two of a
        part; "link": a link is before it. Nothing: it starts them itself.
    small_disk: whether its folder is a file system of 3 MiB. bounded_memory: whether it is in a
        cgroup of its own, without a bound at first. Both need root.
    """
    with ExitStack() as stack:
        run = Running(world, name, place, stack)
        stack.enter_context(run.folders(SMALL_DISK if small_disk else ""))
        if bounded_memory:
            stack.enter_context(world.memory)
            run.group = stack.enter_context(bounded_group(_UNBOUNDED))
        (run.folder / "parts").symlink_to(world.parts)
        config = world.config(run.folder)
        config["cluster"]["servers"] = _serve(run, servers, seed, stack)
        (run.folder / "config.json").write_text(json.dumps(config))
        run.train(*words)
        stack.callback(run.end)
        yield run


def _serve(run: Running, words: Collection[str], seed: int, stack: ExitStack) -> list[Any]:
    """Return ``cluster.servers`` of a run, and start the servers that it needs."""
    if not words:
        return []
    servers: list[Any] = list(run.world.servers)
    if "link" in words:
        run.link = stack.enter_context(Link(servers[run.place], seed))
        address = run.link.address
    else:
        address = run.start_victim()
    servers[run.place] = [address, servers[run.place]] if "two" in words else address
    return servers
