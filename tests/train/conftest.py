"""Training runs on a tiny graph over two servers: in processes of their own, or in the pool."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

import hopper
from hopper.cli import main
from hopper.graph import GraphDirectory, Relation
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.partition import partition_graph
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.results import EPOCHS_FILE, SUMMARY_FILE
from tests.rank_pool import RankPool
from tests.server_processes import own_path

REPOSITORY = Path(__file__).resolve().parents[2]
NEAR = Relation("item", "near", "item")
LIMIT = 120.0


@pytest.fixture(scope="module", autouse=True)
def _ranks(launched_in_pool) -> None:
    """Ranks that a test itself launches are those of the pool."""


def read_neighbourhood(
    config: hopper.Config, parts: hopper.PartitionedGraph, graph: GraphDirectory, nodes: Any
) -> tuple[list[hopper.Block], torch.Tensor]:
    """The blocks of all neighbours of nodes, two layers deep, and the features that they read."""
    full = hopper.make_config(config.model_dump(), ["--sampler.fanouts=[-1, -1]"])
    sampler = hopper.make_sampler(hopper.Request(full, parts))
    subgraph = sampler.sample(parts.global_ids("item")[nodes], 0, 0)
    rows = graph.features("item")[parts.original_ids("item")[subgraph.nodes["item"]]]
    return subgraph.blocks(), torch.from_numpy(rows)


class Run:
    """What a run that has ended printed and wrote.

    Parameters
    ----------
    logs: the folder of the files with what it printed.
    code: the exit code.
    """

    def __init__(self, run_dir: Path, logs: Path, code: int | None = None) -> None:
        self.run_dir = run_dir
        self.epochs_file = run_dir / EPOCHS_FILE
        self.stdout_file, self.stderr_file = (
            logs / f"{run_dir.name}.{suffix}" for suffix in ("out", "err")
        )
        self.code = code

    @property
    def stdout(self) -> str:
        """What the run has printed to standard output."""
        return self.stdout_file.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What the run has printed to standard error."""
        return self.stderr_file.read_text(errors="replace")

    def epochs(self) -> list[dict[str, Any]]:
        """The records of finished epochs, from the file."""
        if not self.epochs_file.exists():
            return []
        complete_lines = self.epochs_file.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in complete_lines.splitlines()]

    def read_lines(self, name: str) -> list[Any]:
        """The values of a file of JSON lines in the run's folder."""
        return [json.loads(line) for line in (self.run_dir / name).read_text().splitlines()]

    @property
    def best_model(self) -> bytes:
        """The content of the file of the best model."""
        return (self.run_dir / "best.safetensors").read_bytes()

    def losses(self) -> list[list[float]]:
        """The losses of all iterations, as a list for each epoch."""
        return [epoch["iteration_losses"] for epoch in self.epochs()]

    @property
    def checkpoint(self) -> Path | None:
        """The newest checkpoint of models."""
        return CheckpointFiles(self.run_dir).newest

    def halt_after(self, step: int) -> None:
        """Make a run that has ended one that was halted after its checkpoint of a step."""
        files = CheckpointFiles(self.run_dir)
        assert step in files.steps
        files.forget_models_after(step)
        (self.run_dir / SUMMARY_FILE).unlink()

    def summary(self) -> dict[str, Any]:
        """The summary that the run wrote at its end."""
        return dict(json.loads((self.run_dir / SUMMARY_FILE).read_text()))


class RunningRun(Run):
    """A training run in a process of its own, and every process that belongs to it.

    The processes are recognised by the run's folder, which their command lines name.
    """

    def __init__(
        self, command: list[str], run_dir: Path, logs: Path, folder: Path, start_new_session: bool
    ) -> None:
        super().__init__(run_dir, logs)
        with self.stdout_file.open("wb") as stdout, self.stderr_file.open("wb") as stderr:
            self.process = subprocess.Popen(
                command,
                stdout=stdout,
                stderr=stderr,
                env=os.environ
                | {"OMP_NUM_THREADS": "1", "PYTHON": sys.executable, "PYTHONPATH": own_path()},
                cwd=folder,
                start_new_session=start_new_session,
            )

    def finish(self, limit: float = LIMIT) -> int:
        """Wait for the run's end; returns the exit code."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.run_dir} did not end in {limit:g} s: {self.stdout}{self.stderr}")

    def await_epochs(self, count: int) -> None:
        """Return once ``count`` epochs are over."""
        self.await_condition(lambda: len(self.epochs()) >= count, f"{count} epochs")

    def await_condition(self, holds: Callable[[], bool], what: str, limit: float = LIMIT) -> None:
        """Return once ``holds()`` is true; the run must not end before."""
        deadline = time.monotonic() + limit
        while not holds():
            code = self.process.poll()
            assert code is None, f"ended with {code} before {what}: {self.stdout}{self.stderr}"
            assert time.monotonic() < deadline, f"no {what} in {limit:g} s: {self.stderr}"
            time.sleep(0.03)

    def members(self) -> list[psutil.Process]:
        """Every living process of the run, except the one that launched it."""
        members, run_dir = [], os.fsencode(self.run_dir)
        # Tests call this many times a second, and psutil takes longer. A zombie's command line is
        # empty.
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != self.process.pid:
                with suppress(OSError, psutil.NoSuchProcess):
                    if run_dir in Path("/proc", name, "cmdline").read_bytes():
                        members.append(psutil.Process(int(name)))
        return members

    def ranks(self) -> list[psutil.Process]:
        """The ranks, in order."""
        ranks = self.named("hopper rank ")
        return [ranks[rank] for rank in sorted(ranks)]

    def named(self, beginning: str) -> dict[int, psutil.Process]:
        """Processes whose names have a beginning, by the number that follows it."""
        found = {}
        for process in self.members():
            # A process that ends meanwhile is skipped.
            with suppress(psutil.NoSuchProcess):
                if process.name().startswith(beginning):
                    found[int(process.name().removeprefix(beginning))] = process
        return found

    def server(self, index: int) -> psutil.Process:
        """The feature server with that index."""
        if forked := self.named("cache_server "):
            return forked[index]
        words = ["cache_server", "--server", str(index)]
        [server] = [process for process in self.members() if set(words) <= set(process.cmdline())]
        return server

    def assert_nothing_remains(self, limit: float = 0.0) -> None:
        """Fail if a server or a rank still lives after ``limit`` seconds."""
        deadline = time.monotonic() + limit
        while left := self.members():
            if time.monotonic() > deadline:
                pytest.fail(
                    f"left behind: {[(process.pid, process.cmdline()) for process in left]}"
                )
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill the processes that are left of the run."""
        for process in [self.process, *self.members()]:
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.send_signal(signal.SIGKILL)
        self.process.wait()


class Runs:
    """Makes runs, and makes sure that no process of one outlives the tests."""

    hopper = (sys.executable, "-m", "hopper.cli")

    def __init__(self, partitioned: Path, folder: Path, pool: RankPool) -> None:
        self._partitioned = partitioned
        self._folder = folder
        self._pool = pool
        self._started: list[RunningRun] = []

    def config(self, name: str, **train: Any) -> Path:
        """Write a configuration whose run goes to a folder ``name``."""
        parts = self._folder / f"{name}-parts"
        if not parts.is_symlink():
            parts.symlink_to(self._partitioned)
        values: dict[str, Any] = {
            "data": {"partitioned": str(parts)},
            "model": {"layers": 2, "hidden": 8, "dropout": 0.3},
            "sampler": {"fanouts": [4, 3]},
            "train": {
                "engine": "hop",
                "batch_size": 4,
                "epochs": 3,
                "learning_rate": 0.02,
                "run_dir": str(self._folder / name),
                **train,
            },
            # Decisions from clocks differ from run to run.
            "hop": {"merge": "off"},
            "cluster": {"timeout_seconds": 60.0},
        }
        file = self._folder / f"{name}.json"
        file.write_text(json.dumps(values))
        return file

    def train(
        self, name: str, *overrides: str, start_new_session: bool = False, **train: Any
    ) -> RunningRun:
        """Start ``hopper train``."""
        command = [*self.hopper, "train", str(self.config(name, **train)), *overrides]
        return self.start(command, name, start_new_session=start_new_session)

    def start(
        self,
        command: list[str],
        name: str,
        *,
        folder: Path = REPOSITORY,
        start_new_session: bool = False,
    ) -> RunningRun:
        """Start a command that trains into the run folder ``name``; ``folder`` is where it runs."""
        run = RunningRun(command, self._folder / name, self._folder, folder, start_new_session)
        self._started.append(run)
        return run

    def call(self, name: str, *words: str) -> Run:
        """Run ``hopper WORDS`` to its end: the launcher in this process, ranks in the pool."""
        run = Run(self._folder / name, self._folder)
        with (
            run.stdout_file.open("w") as stdout,
            run.stderr_file.open("w") as stderr,
            redirect_stdout(stdout),
            redirect_stderr(stderr),
            self._pool.launching(),
        ):
            run.code = main(list(words))
        return run

    def call_to_end(self, name: str, *words: str) -> Run:
        """Run ``hopper WORDS`` as :meth:`call` does; fails unless it exits with 0."""
        run = self.call(name, *words)
        assert run.code == 0, f"ended with {run.code}: {run.stdout}{run.stderr}"
        return run

    def try_to_train(self, name: str, *overrides: str, **train: Any) -> Run:
        """Run ``hopper train`` as :meth:`call` does."""
        return self.call(name, "train", str(self.config(name, **train)), *overrides)

    def train_to_end(self, name: str, *overrides: str, **train: Any) -> Run:
        """Run ``hopper train`` as :meth:`call` does; fails unless it exits with 0."""
        return self.call_to_end(name, "train", str(self.config(name, **train)), *overrides)

    def kill(self) -> None:
        """Kill the processes that are left of all runs."""
        for run in self._started:
            run.kill()


@pytest.fixture(scope="session")
def runs(parts, tmp_path_factory, rank_pool) -> Iterator[Runs]:
    """Makes training runs."""
    runs = Runs(parts, tmp_path_factory.mktemp("runs"), rank_pool)
    yield runs
    runs.kill()


@pytest.fixture(scope="session")
def reference(runs) -> Run:
    """Three epochs of ``hopper train``. Other ways to the same run must give the same losses."""
    return runs.train_to_end("reference")


@pytest.fixture(scope="session")
def edge_graphs(community_graph, tmp_path_factory) -> dict[str, GraphDirectory]:
    """The community graph whose edges are predicted ("links"), or whether their ends are of one
    community ("labels"). Nine edges in ten have a label.

    Beside each graph are its divisions over one server, ``1``, and over two, ``2``.
    """
    topology, community = community_graph.topology(NEAR), community_graph.labels("item")
    src, dst = topology.indices, topology.list_destinations()
    labels = (community[src] == community[dst]).astype(np.int64)
    labels[::10] = -1
    folder, graphs = tmp_path_factory.mktemp("edges"), {}
    for kind, more in (("links", {}), ("labels", {"labels": {NEAR: labels}})):
        graphs[kind] = GraphDirectory.from_arrays(
            folder / kind / "graph",
            {NEAR: np.stack([src, dst])},
            features={"item": np.asarray(community_graph.features("item"))},
            target=NEAR,
            options=ImportOptions(split=RandomSplit(0.8, 0.1)),
            **more,
        )
        for servers in (1, 2):
            partition_graph(graphs[kind], folder / kind / str(servers), servers, "random")
    return graphs


@pytest.fixture
def typed_runs(parts_of, tmp_path, rank_pool) -> Runs:
    """Makes runs on papers with features and authors and fields without, in the pool."""
    return Runs(parts_of("bare"), tmp_path, rank_pool)
