"""Runs an experiment cell by cell and writes what was measured; finished cells are kept."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import torch

from benchmarks.paper.cells import Cell
from benchmarks.paper.experiment import FOUND, Experiment
from benchmarks.paper.materials import Materials
from benchmarks.peers.distdgl import PEERS, DistDGL
from benchmarks.summary import SUMMARY_FILE, Row, write
from hopper.bench.contender import Contender
from hopper.bench.emulate.request import Request, make_request
from hopper.bench.machine import commit, machine, short_commit, versions
from hopper.config import Config
from hopper.engines import Request as EngineRequest
from hopper.engines.checks import check_request
from hopper.files.whole_files import to_json, write_text
from hopper.partition import PartitionedGraph
from hopper.timing.paired_ratio import Ratio, paired_ratio

SENT_BYTES: Final = "sent bytes"
"""of all ranks in an epoch, the value that fills the column ``bytes``"""
ROOT_SECONDS: Final = "seconds a thousand roots"
"""the value whose ratio to that of the fewest servers is reported"""
_COSTS: Final = frozenset(
    ("seconds", "bytes", "MB", "MiB", "rows", "requests", "operators", "forward", "groups")
)
"""words of the measures of which less is better, so that a ratio is told"""

Value = float | list[float]
"""one for each round or seed; or a count, which no clock or seed changes"""
Values = dict[str, dict[str, Value]]
"""by side and measure"""


class Measured(NamedTuple):
    """What was measured of a cell.

    record: all else that its file holds. problems: why no ratio may be told.
    """

    values: Values
    record: dict[str, Any]
    problems: Sequence[str] = ()


@dataclass(frozen=True)
class Job:
    """An experiment with all that it takes to carry it out.

    Attributes
    ----------
    words: overrides ``--section.key=value`` of the command line.
    emulated: servers are emulated hosts where they can be had; False = all on loopback.
    begin: told the name of every run that begins.
    """

    experiment: Experiment
    cells: Sequence[Cell]
    words: tuple[str, ...]
    emulated: bool
    out: Path
    materials: Materials
    say: Callable[[str], None]
    begin: Callable[[str], None]

    @property
    def all_words(self) -> tuple[str, ...]:
        """Words that are added to a cell's configuration."""
        epochs = str(self.experiment.epochs)
        return (*(w.replace("{epochs}", epochs) for w in self.experiment.words), *self.words)

    @property
    def peers(self) -> dict[str, DistDGL]:
        """The sides that are other systems."""
        sides = self.experiment.sides
        return {side: PEERS[label] for side, label in sides.items() if label in PEERS}

    def config(self, cell: Cell, partitioned: Path) -> Config:
        """Return the configuration that all sides of a cell share."""
        experiment = self.experiment
        return cell.config(partitioned, experiment.epochs, experiment.iterations, self.all_words)

    def labels(
        self, cell: Cell, dissolve: int = 0, divisions: Mapping[str, Path] | None = None
    ) -> dict[str, str]:
        """Return the sides of a cell that are Hopper's, each as ``ENGINE[:KEY=VALUE]...``.

        Parameters
        ----------
        dissolve: the number of time steps that an adaptive run settled on.
        divisions: where the graph lies by method; by default it is divided where it is not yet.
        """
        if divisions is None:
            methods = self.experiment.divisions
            divisions = {method: self.materials.parts(cell, method).path for method in methods}
        labels = {}
        for side, label in self.experiment.sides.items():
            if side not in self.peers:
                labels[side] = label.replace(FOUND, str(dissolve) if dissolve else "off")
                for method, path in divisions.items():
                    labels[side] = labels[side].replace(f"{{{method}}}", str(path))
        return labels

    def contenders(self, cell: Cell, **of_labels: Any) -> dict[str, Contender]:
        """Return the sides of a cell that are Hopper's; keywords are those of :meth:`labels`."""
        labels = self.labels(cell, **of_labels)
        return {side: Contender.parse(label) for side, label in labels.items()}

    def request(self, cell: Cell) -> Request | None:
        """Return the emulated cluster of a cell; None on loopback."""
        if not self.emulated:
            return None
        experiment, cpus = self.experiment, self.experiment.host_cpus
        if cpus == "shared":
            most = max(cell.servers for cell in self.cells)
            cpus = len(os.sched_getaffinity(0)) / most
        return make_request(cell.servers, cell.link, cpus, experiment.host_memory)

    def why_not(self, cell: Cell) -> dict[str, str | None]:
        """Return why other systems cannot train a cell here, by side; None where one can."""
        if not self.peers:
            return {}
        if not self.emulated:
            return dict.fromkeys(self.peers, "it is trained over emulated hosts alone")
        config = self.config(cell, self.materials.work)
        return {side: peer.why_not(config) for side, peer in self.peers.items()}

    def run_folder(self, cell: Cell) -> Path:
        """Return an empty folder for a cell's runs; what an earlier one left in it is deleted."""
        folder = self.materials.work / "runs" / self.experiment.name / cell.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def cell_file(self, cell: Cell) -> Path:
        """Return the path of a cell's result."""
        return self.out / "cells" / self.experiment.name / f"{cell.name}.json"

    def check(self) -> None:
        """Make every side's configuration of every cell, before anything is made.

        Raises
        ------
        RequestError, ConfigError: names the option or key, what was expected and what came.
        """
        for cell in self.cells:
            self.request(cell)
            if self.experiment.grid.models:
                config = self.config(cell, self.materials.work)
                for contender in self.contenders(cell, divisions={}).values():
                    contender.configure(config)

    def prepare(self) -> None:
        """Divide the graphs of all cells to come, and let every engine refuse what it has to.

        Raises
        ------
        HopperError: an engine cannot train a cell.
        """
        for cell in self.cells:
            if self.read(cell) is None:
                config = self.config(cell, self.materials.parts(cell).path)
                sides = self.contenders(cell) if self.experiment.grid.models else {}
                for contender in sides.values():
                    graph = contender.graph(config)
                    check_request(EngineRequest(contender.configure(config), graph))

    def asked(self, cell: Cell) -> str:
        """Return a name for all that was asked for and that a cell's result depends on."""
        experiment, request = self.experiment, self.request(cell)
        asked = {
            "cell": asdict(cell),
            "sides": experiment.sides,
            "measure": [experiment.measure, experiment.auto],
            "runs": [experiment.rounds, experiment.epochs, experiment.iterations],
            "words": self.all_words,
            "emulation": None if request is None else request.describe(),
            "left out": self.why_not(cell),
        }
        return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """Read a cell's result, if it exists and is what is asked for."""
        path = self.cell_file(cell)
        entry = json.loads(path.read_text()) if path.is_file() else {}
        return entry if entry.get("asked") == self.asked(cell) else None

    def keep(self, cell: Cell, measured: Measured) -> dict[str, Any]:
        """Write a cell's result, with its date, commit and machine; returns it as it is read."""
        path = self.cell_file(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = {
            "experiment": self.experiment.name,
            "asked": self.asked(cell),
            "date": datetime.date.today().isoformat(),
            "commit": commit(),
            "machine": machine() | {"gpu": gpu_name()},
            "versions": versions(),
            "cell": asdict(cell) | {"graph": Path(cell.graph).name},
            **measured._asdict(),
        }
        write_text(path, to_json(entry, indent=1) + "\n")
        return dict(json.loads(path.read_text()))


def run_job(job: Job, measure: Callable[[Job, Cell], Measured]) -> Iterator[dict[str, Any]]:
    """Measure every cell that has no result yet, and write its lines into summary.csv.

    Yields
    ------
    The content of every cell's file, with ``rows``: its lines.

    Raises
    ------
    HopperError: a cell cannot be measured; those before it are kept.
    """
    fewest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, cell in enumerate(job.cells, 1):
        entry = job.read(cell)
        if entry is not None:
            job.say(f"{cell.name}: is there already")
        else:
            job.say(f"cell {number} of {len(job.cells)}: {cell.name}")
            job.begin(cell.name)
            entry = job.keep(cell, measure(job, cell))
            shutil.rmtree(job.materials.work / "runs" / job.experiment.name, ignore_errors=True)
        setting = (cell.graph, cell.model, cell.hidden, cell.fanouts, cell.link)
        base = fewest.setdefault(setting, entry)
        rows = [*make_rows(job.experiment, entry), *scaling_rows(job.experiment, entry, base)]
        for pattern in job.experiment.report:
            if not any(fnmatchcase(row.measure, pattern) for row in rows):
                job.say(f"{cell.name}: no side has a value that is called {pattern!r}")
        write(job.out / SUMMARY_FILE, rows)
        yield entry | {"rows": rows}


def make_rows(experiment: Experiment, entry: Mapping[str, Any]) -> list[Row]:
    """Return a cell's lines: of every side and reported value, one for each baseline."""
    values: Values = entry["values"]
    rows = []
    for side, measures in values.items():
        size = measures.get(SENT_BYTES)
        for measure, value in measures.items():
            # What is told of no side is how the cell's graph is divided.
            if side and not any(fnmatchcase(measure, pattern) for pattern in experiment.report):
                continue
            row = _row(entry, side, measure, value)._replace(
                bytes=round(size) if isinstance(size, int | float) else None
            )
            is_cost = " over " not in measure and _COSTS & set(measure.replace(",", "").split())
            tells_ratios = is_cost and not entry["problems"]
            ratios = [
                (baseline, ratio_of(values[baseline][measure], value))
                for baseline, sides in experiment.comparisons.items()
                if side in sides and measure in values.get(baseline, {}) and tells_ratios
            ]
            rows += [
                row._replace(baseline=baseline, ratio=ratio.mean, low=ratio.low, high=ratio.high)
                for baseline, ratio in ratios
                if ratio is not None
            ] or [row]
    return rows


def scaling_rows(
    experiment: Experiment, entry: Mapping[str, Any], fewest: Mapping[str, Any]
) -> Iterator[Row]:
    """Yield how many times faster a cell trains than the same one on the fewest servers."""
    servers = fewest["cell"]["servers"]
    if entry["cell"]["servers"] == servers or ROOT_SECONDS not in experiment.report:
        return
    for side, measures in entry["values"].items():
        base = fewest["values"].get(side, {}).get(ROOT_SECONDS)
        if base is not None and ROOT_SECONDS in measures:
            row = _row(entry, side, ROOT_SECONDS, measures[ROOT_SECONDS])
            ratio = middle(base) / middle(measures[ROOT_SECONDS])
            yield row._replace(baseline=f"{servers} servers", ratio=ratio)


def ratio_of(base: Value, value: Value) -> Ratio | None:
    """Return the ratio of a baseline's value to another; None where they cannot be paired."""
    bases, values = as_list(base), as_list(value)
    if len(bases) != len(values) or not all(0 < v < float("inf") for v in (*bases, *values)):
        return None
    return paired_ratio(bases, values)


def middle(value: Value) -> float:
    """Return the median over rounds or seeds."""
    return median(as_list(value))


def gpu_name() -> str | None:
    """Return the first GPU's name; None where there is none."""
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def graph_size(graph: PartitionedGraph) -> dict[str, int]:
    """Return the number of ``nodes`` and ``edges`` of a graph, over all types."""
    schema = graph.schema
    return {
        "nodes": sum(kind.count for kind in schema.node_types.values()),
        "edges": sum(kind.count for kind in schema.relations.values()),
    }


def _row(entry: Mapping[str, Any], side: str, measure: str, value: Value) -> Row:
    return Row(
        entry["experiment"], entry["cell"]["name"], side, measure, middle(value),
        rounds=len(value) if isinstance(value, list) else None,
        date=entry["date"], commit=short_commit(entry["commit"]),
    )  # fmt: skip


def as_list(value: Value) -> list[float]:
    """Return the rounds of a value; words of JSON stand for what is not finite."""
    return [float(v) for v in (value if isinstance(value, list) else [value])]
