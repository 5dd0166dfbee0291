"""Runs the cells of an experiment as A/Bs. A cell with a result is not run again."""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.paper.cells import Cell
from benchmarks.paper.experiment import Experiment
from benchmarks.paper.held import SPANS_FOLDER, read_held_rows
from benchmarks.paper.materials import Materials
from benchmarks.paper.options import Options
from benchmarks.paper.toml import write_toml
from benchmarks.peers.peer import Peer
from benchmarks.peers.registry import PEERS
from hopper.bench.ab import run_ab
from hopper.bench.ab_plan import CONFIG_FILE, Plan, make_plan
from hopper.bench.guest import Guest
from hopper.bench.layer_work import read_layer_work
from hopper.bench.machine import commit, machine, versions
from hopper.bench.placement import place_plan
from hopper.config import Config
from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.micrograph.merge_number import MERGE
from hopper.train.auto_engine import ENGINE_FILE
from hopper.whole_files import to_json, write_text

CELL_SCHEMA: Final = 1
CELLS_FOLDER: Final = "cells"
CONFIGS_FOLDER: Final = "configs"
RUNS_FOLDER: Final = "runs"
PEERS_FOLDER: Final = "peers"
ReadRuns = Callable[[Mapping[str, Path]], dict[str, Any]]
"""reads the first timed run of every side: by role, its folder"""
_SCOUT_ITERATIONS: Final = 25
"""of an epoch: two such epochs compare two numbers of time steps"""


@dataclass(frozen=True)
class Progress:
    """Whom to tell: lines, and the name of each run that begins."""

    say: Callable[[str], None]
    begin: Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """An experiment with all that it takes to carry it out."""

    experiment: Experiment
    options: Options
    cells: tuple[Cell, ...]
    materials: Materials
    progress: Progress

    @property
    def rounds(self) -> int:
        """Rounds of every comparison."""
        return self.options.rounds or self.experiment.rounds

    @property
    def words(self) -> tuple[str, ...]:
        """Words that are added to a cell's configuration."""
        scoring = (f"--train.evaluate_every={self.epochs}",) if self.experiment.scores else ()
        return (*self.experiment.words, *scoring, *self.options.words)

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The names of other systems to compare with."""
        names = self.options.peers
        default = self.experiment.peers
        return tuple(PEERS[name] for name in (default if names is None else names))

    def config(self, cell: Cell, partitioned: Path) -> Config:
        """Return the configuration that all sides of a cell share."""
        return cell.config(partitioned, self.epochs, self.iterations, self.words)

    def peers_of(self, cell: Cell) -> dict[Peer, str | None]:
        """Return the other systems that are asked for, each with why it cannot train a cell."""
        if not self.peers:
            return {}
        config = self.config(cell, self.options.work)
        return {peer: peer.why_not(config) for peer in self.peers}

    def runs_of(self, cell: Cell) -> int:
        """Count the training runs of a cell."""
        extra_runs = self.experiment.looks_for_merge + self.experiment.lets_auto_choose
        peers = list(self.peers_of(cell).values()).count(None) if self.options.emulated else 0
        return (len(self.experiment.sides) + peers) * self.rounds + extra_runs

    @property
    def total_runs(self) -> int:
        """Number of runs of all cells."""
        count = self.experiment.count_runs
        return sum(map(self.runs_of, self.cells)) if count is None else count(self)

    @property
    def epochs(self) -> int:
        """Epochs of every timed run."""
        return self.options.epochs or self.experiment.epochs

    @property
    def iterations(self) -> int:
        """The most iterations of an epoch."""
        return self.options.iterations or self.experiment.iterations

    def cell_file(self, cell: Cell) -> Path:
        """Return the path of a cell's result."""
        return self.options.out / CELLS_FOLDER / f"{cell.name}.json"

    def read_result(self, cell: Cell, fingerprint: str) -> dict[str, Any] | None:
        """Read a cell's result, if it exists and was measured with the present options."""
        path = self.cell_file(cell)
        if not path.is_file():
            return None
        result: dict[str, Any] = json.loads(path.read_text())
        return result if result.get("asked") == fingerprint else None

    def fingerprint(self, cell: Cell) -> str:
        """Return a name for all that was asked for and that a cell's result depends on."""
        options = self.options
        request = {
            "cell": asdict(cell),
            "sides": [list(side) for side in self.experiment.sides],
            "epochs": self.epochs,
            "iterations": self.iterations,
            "rounds": self.rounds,
            "seeds": options.seeds,
            "words": list(self.words),
            "emulation": _describe_hosts(options, cell),
        }
        if self.peers:
            request["peers"] = {peer.name: why for peer, why in self.peers_of(cell).items()}
        return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()

    def keep(self, cell: Cell, record: Mapping[str, Any]) -> dict[str, Any]:
        """Write a cell's result, with its date and commit."""
        path = self.cell_file(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = {
            "schema": CELL_SCHEMA,
            "asked": self.fingerprint(cell),
            "date": datetime.date.today().isoformat(),
            "commit": commit(),
            "machine": machine(),
            "versions": versions(),
            "cell": describe_cell(cell),
            **record,
        }
        write_text(path, to_json(entry, indent=1) + "\n")
        return dict(json.loads(path.read_text()))


def describe_cell(cell: Cell) -> dict[str, Any]:
    """Describe a cell for JSON, with only the last name of a graph directory."""
    return asdict(cell) | {"graph": Path(cell.graph).name}


def run_grid(job: Job, read_runs: ReadRuns | None = None) -> Iterator[dict[str, Any]]:
    """Compare all sides in every cell that has no result yet.

    Parameters
    ----------
    read_runs: what is read of a cell's runs besides, for ``extra``. Their folders are deleted
    afterwards.

    Yields
    ------
    The content of every cell's file, in the order of the cells.

    Raises
    ------
    HopperError: a cell cannot be run; those before it are kept.
    """
    for number, cell in enumerate(job.cells, 1):
        record = job.read_result(cell, job.fingerprint(cell))
        if record is not None:
            job.progress.say(f"{cell.name}: is there already")
            for _ in range(job.runs_of(cell)):
                job.progress.begin(cell.name)
        else:
            job.progress.say(f"cell {number} of {len(job.cells)}: {cell.name}")
            record = _run_cell(job, cell, read_runs)
        yield record


def _run_cell(job: Job, cell: Cell, read_runs: ReadRuns | None) -> dict[str, Any]:
    experiment, options = job.experiment, job.options
    graph = job.materials.parts(cell)
    config = job.config(cell, graph.path)
    folder = options.work / RUNS_FOLDER / experiment.name / cell.name
    if folder.exists():
        # Delete what an interrupted run, or one with other options, left.
        shutil.rmtree(folder)
    divisions = {
        method: job.materials.division(cell, method).path for method in experiment.divisions
    }
    texts = dict.fromkeys(side.text(divisions) for side in experiment.sides)
    plan = make_plan(config, list(texts), folder / "ab", job.rounds)
    peers = _join_peers(job, cell, config) if options.emulated else {}
    plan = replace(plan, guests=tuple(peers.values()))
    begin = lambda name: job.progress.begin(f"{cell.name}: {name}")  # noqa: E731
    with place_plan(plan, options.request(cell.servers), job.progress.say) as (plan, emulation):
        scout = _look_for_merge(plan, folder, begin) if experiment.looks_for_merge else None
        dissolve = scout["dissolve"] if scout is not None else 0
        sides = {side.role: side.contender(dissolve, divisions) for side in experiment.sides}
        contenders = tuple(dict.fromkeys(sides.values()))
        for _ in range((len(sides) - len(contenders)) * job.rounds):
            begin("no time step is dissolved, so that two sides are one")
        plan = replace(plan, contenders=contenders)
        outcome = run_ab(plan, job.progress.say, begin)
        auto = _let_auto_choose(plan, folder, begin) if experiment.lets_auto_choose else None
    outcome.results["machine"]["emulation"] = emulation
    first_runs = {role: plan.run_dir(side, 0) for role, side in sides.items()}
    # If hosts cannot be built, the plan has no guests.
    trained = [peer for peer, guest in peers.items() if guest in plan.guests]
    model = make_model(Request(config, graph))
    record = {
        "sides": {role: contender.label for role, contender in sides.items()},
        "scout": scout,
        "auto": auto,
        "problems": outcome.problems,
        "parameter_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "held": {role: read_held_rows(run) for role, run in first_runs.items()},
        "work": {
            role: [work._asdict() for work in read_layer_work(run / SPANS_FOLDER)]
            for role, run in first_runs.items()
        },
        "peers": {peer.role: peer.name for peer in trained},
        "notes": [peer.note for peer in trained],
        "guests": list(outcome.guests),
        "extra": (experiment.extra(config, graph) if experiment.extra is not None else {})
        | (read_runs(first_runs) if read_runs is not None else {}),
        "results": outcome.results,
    }
    write_config(job, cell, dissolve)
    entry = job.keep(cell, record)
    # The record holds all figures of the runs; their learnable rows would fill a disk.
    shutil.rmtree(folder)
    return entry


def _join_peers(job: Job, cell: Cell, config: Config) -> dict[Peer, Guest]:
    """Set up the other systems that can train a cell, each with the graph divided for it."""
    guests: dict[Peer, Guest] = {}
    for peer, why in job.peers_of(cell).items():
        if why is not None:
            job.progress.say(f"{cell.name}: {peer.role} is left out: {why}")
            continue
        graph, parts = job.materials.graph(cell), job.materials.parts(cell)
        work = job.options.work / PEERS_FOLDER / job.materials.parts_path(cell).name
        job.progress.say(f"{cell.name}: dividing the graph for {peer.role}")
        guests[peer] = peer.join(config, graph, parts, work)
    return guests


def _look_for_merge(plan: Plan, folder: Path, begin: Callable[[str], None]) -> dict[str, Any]:
    """Run adaptive merging until it settles. What it found is then compared as a fixed number."""
    begin("hop, looking for the number of time steps")
    epochs = plan.world + 2
    words = [
        *("--train.engine=hop", "--hop.merge=adaptive", f"--train.epochs={epochs}"),
        f"--train.iterations_per_epoch={_SCOUT_ITERATIONS}",
    ]
    config, limit = plan.out / CONFIG_FILE, plan.limit * epochs
    summary = plan.train("hop, adaptive", config, folder / "scout", words, limit)
    decisions = [epoch["decisions"] for epoch in summary["epochs"]]
    return {
        "dissolve": decisions[-1][MERGE],
        "seconds": [epoch["seconds"] for epoch in summary["epochs"]],
        "decisions": decisions,
    }


def _let_auto_choose(plan: Plan, folder: Path, begin: Callable[[str], None]) -> dict[str, Any]:
    """Return what ``train.engine = "auto"`` takes here, and what it tried."""
    begin("auto")
    words = ["--train.engine=auto", "--train.epochs=1"]
    plan.train("auto", plan.out / CONFIG_FILE, folder / "auto", words, plan.limit)
    choice: dict[str, Any] = json.loads((folder / "auto" / ENGINE_FILE).read_text())
    return choice


def write_config(job: Job, cell: Cell, dissolve: int = 0, more: tuple[str, ...] = ()) -> None:
    """Write the cell's configuration, below the commands that repeat it by hand.

    Parameters
    ----------
    dissolve: the number of time steps to dissolve that an adaptive run settled on.
    more: words behind the command of the comparison.
    """
    options, experiment = job.options, job.experiment
    paths = {method: job.materials.parts_path(cell, method) for method in experiment.divisions}
    labels = dict.fromkeys(side.text(paths, dissolve) for side in experiment.sides)
    request = options.request(cell.servers)
    command = [
        *("hopper bench ab", f"{cell.name}.toml", "--engines", ",".join(labels)),
        *("--rounds", str(job.rounds), "--out", cell.name),
    ]
    if request is not None:
        command += ["--emulate", str(request.hosts), "--link-rate", request.link_rate]
        if options.host_cpus is not None:
            command += ["--host-cpus", f"{options.host_cpus:g}"]
        if options.host_memory is not None:
            command += ["--host-memory", options.host_memory]
    lines = [
        *job.materials.recipe(cell, experiment.divisions),
        " ".join([*command, *job.words, *more]),
    ]
    values = cell.values(str(job.materials.parts_path(cell)), job.epochs, job.iterations)
    folder = options.out / CONFIGS_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    write_toml(folder / f"{cell.name}.toml", values, lines)


def _describe_hosts(options: Options, cell: Cell) -> dict[str, Any] | None:
    request = options.request(cell.servers)
    return request.describe() if request is not None else None
