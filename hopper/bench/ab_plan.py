"""The plan of ``hopper bench``: the engines to compare, and the folder for their results.

A plan is checked before any process starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from hopper.bench.contender import Contender, parse_contenders
from hopper.bench.emulate.hosts import EmulatedCluster
from hopper.bench.guest import Guest
from hopper.bench.train_process import train_in_process
from hopper.config import Config, change_config
from hopper.engines import Request
from hopper.engines.assemble import make_schedule
from hopper.engines.checks import check_request
from hopper.errors import RequestError
from hopper.features import open_graph
from hopper.files.whole_files import write_text
from hopper.partition import PartitionedGraph

CONFIG_FILE: Final = "config.json"
RUNS_FOLDER: Final = "runs"
COMPARED_ITERATIONS: Final = 8
"""Gradients are compared within at most this many iterations from a run's start."""

TrainRun = Callable[[str, Path, Path, Sequence[str], float], dict[str, Any]]
"""Makes a run, as :func:`hopper.bench.train_process.train_in_process` does."""


@dataclass(frozen=True)
class Plan:
    """A comparison to make, and the folder for its results.

    Attributes
    ----------
    config: the configuration that all contenders share.
    contenders: the engines, with their options.
    out: the folder of all files.
    rounds: number of rounds.
    limit: seconds that a run may take.
    graph: the partitioned graph.
    iterations: iterations of an epoch in timed runs.
    train: makes a run, in processes of this machine or over emulated hosts.
    guests: other systems that are trained in the same rounds. They need emulated hosts.
    cluster: the emulated hosts; None = loopback.
    """

    config: Config
    contenders: tuple[Contender, ...]
    out: Path
    rounds: int
    limit: float
    graph: PartitionedGraph = field(repr=False)
    iterations: int
    train: TrainRun = field(default=train_in_process, repr=False)
    guests: tuple[Guest, ...] = ()
    cluster: EmulatedCluster | None = field(default=None, repr=False)

    @property
    def world(self) -> int:
        """Number of ranks of every run."""
        return self.graph.book.servers * self.config.cluster.ranks_per_server

    @property
    def total_runs(self) -> int:
        """Number of runs of all rounds."""
        return (len(self.contenders) + len(self.guests)) * self.rounds

    @cached_property
    def recorded_iterations(self) -> list[int]:
        """The iterations whose gradients the first round records: first, middle and last.

        Every contender has at least as many. With full batches an epoch has one iteration.
        """
        epochs = self.config.train.epochs
        totals = [epochs * self.epoch_iterations(contender) for contender in self.contenders]
        last = min(self.iterations, COMPARED_ITERATIONS, *totals) - 1
        return sorted({0, last // 2, last})

    def epoch_iterations(self, contender: Contender) -> int:
        """Return how many iterations an epoch of a contender has."""
        config = contender.configure(self.config)
        return make_schedule(Request(config, contender.graph(self.config)), self.world).iterations

    def write_config(self) -> None:
        """Make the folder, with the configuration that all runs read."""
        self.out.mkdir(parents=True, exist_ok=True)
        write_text(self.out / CONFIG_FILE, self.config.model_dump_json(indent=1) + "\n")

    def run_dir(self, side: Contender | Guest, round_index: int) -> Path:
        """Return the folder of a run's files."""
        return self.out / RUNS_FOLDER / f"{side.folder}-round-{round_index}"

    def order(self, round_index: int) -> list[Contender | Guest]:
        """Return the order of a round. Another side begins in each round."""
        sides: list[Contender | Guest] = [*self.contenders, *self.guests]
        first = round_index % len(sides)
        return [*sides[first:], *sides[:first]]


def make_plan(
    config: Config, engines: Sequence[str], out: Path, rounds: int, limit: float | None = None
) -> Plan:
    """Check a comparison before any process starts, and make its folder.

    Parameters
    ----------
    engines: the contenders, each as ``ENGINE[:KEY=VALUE]...``.
    limit: seconds that a run may take. By default the sum of the configuration's deadlines: those
        of the start, and one ``cluster.timeout_seconds`` for every iteration and evaluation.
    """
    contenders = parse_contenders(engines)
    if rounds < 1:
        raise RequestError(f"--rounds: expected at least 1, given {rounds}")
    if limit is not None and not 0 < limit < math.inf:
        raise RequestError(f"--run-timeout: expected more than 0 seconds, given {limit:g}")
    if config.train.init_from:
        raise RequestError(
            "train.init_from: engines are compared with one process that begins at random; "
            f"expected nothing, given {config.train.init_from!r}"
        )
    configs = [contender.configure(config) for contender in contenders]
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RequestError(f"--out: {out} exists and is not an empty folder; name another")
    graph = open_graph(config)
    for contender, own_config in zip(contenders, configs, strict=True):
        division = contender.graph(config)
        if division.schema != graph.schema or division.book.servers != graph.book.servers:
            raise RequestError(
                f"--engines: {contender.label}: expected another division of the graph "
                f"{graph.schema.name!r} over {graph.book.servers} servers, found "
                f"{division.schema.name!r} over {division.book.servers}"
            )
        check_request(Request(own_config, division))
    # Timed runs have no options that end them early or take time.
    train = {"patience": 0, "resume": False, "checkpoint_every": 0}
    timed = change_config(
        config,
        train={**train, "record_gradients": [], "run_dir": ""},
        data={"partitioned": str(Path(config.data.partitioned).absolute())},
    )
    plan = Plan(timed, contenders, out, rounds, 0.0, graph, 0)
    iterations = make_schedule(Request(timed, graph), plan.world).iterations
    waits = timed.train.epochs * (iterations + 1) + 2
    deadlines = timed.cluster.start_timeout_seconds + waits * timed.cluster.timeout_seconds
    plan.write_config()
    return replace(plan, iterations=iterations, limit=limit or deadlines)
