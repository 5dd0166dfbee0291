"""The folder that a report is about: of an A/B, or of a single training run.

results.json or summary.json must exist and be valid. Everything else (spans, loss curves, the
partitioned graph) is optional. :attr:`Source.missing` says what does not exist.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from os.path import isfile
from pathlib import Path
from typing import Any

from hopper.bench.contender import Contender
from hopper.bench.layer_work import LayerWork, read_layer_work
from hopper.bench.report.records import Epoch, Results, Run, Summary, check_record, load_json
from hopper.bench.report.spans import Timeline, read_timeline
from hopper.bench.results import RESULTS_FILE, describe_dataset, describe_partition
from hopper.errors import HopperError, RequestError
from hopper.partition import PartitionedGraph
from hopper.train.results import SPANS_FOLDER, SUMMARY_FILE


@dataclass(frozen=True)
class Source:
    """The content of a report. ``summary`` is that of a single run, None for an A/B.

    By name of run: the epochs of its first round with losses per iteration and scores, a few
    iterations as they ran, and how layers are divided among ranks. ``missing`` says what cannot be
    shown, and why.
    """

    folder: Path
    results: Results
    metric: str
    summary: Summary | None = None
    learning: dict[str, list[Epoch]] = field(default_factory=dict)
    timelines: dict[str, Timeline] = field(default_factory=dict)
    work: dict[str, list[LayerWork]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def by_name(self) -> dict[str, list[Run]]:
        """The runs of each name, in the order of rounds."""
        names = dict.fromkeys(run.name for run in self.results.runs)
        runs = sorted(self.results.runs, key=lambda run: run.round)
        return {name: [run for run in runs if run.name == name] for name in names}

    @cached_property
    def plain_runs(self) -> list[dict[str, Any]]:
        """The runs as :mod:`hopper.bench.statistics` takes them."""
        return [run.model_dump() | {"label": run.name} for run in self.results.runs]

    def add_spans(self, name: str, run_folder: Path) -> None:
        """Read what the ranks of a run logged."""
        spans = run_folder / SPANS_FOLDER
        timeline = read_timeline(spans) if spans.is_dir() else None
        if timeline is None:
            self.missing.append(f"{name}: no recorded spans in {run_folder.name}/{SPANS_FOLDER}")
        else:
            self.timelines[name], self.work[name] = timeline, read_layer_work(spans)


def read_source(folder: Path) -> Source:
    """Read the folder of an A/B or of a single run.

    Raises
    ------
    RequestError: the folder belongs to neither, or a file is not valid. Names the file and field.
    """
    if (folder / RESULTS_FILE).is_file():
        return _read_ab(folder)
    if (folder / SUMMARY_FILE).is_file():
        return _read_run(folder)
    raise RequestError(
        f"{folder}: expected a folder with {RESULTS_FILE} (of `hopper bench`) or "
        f"{SUMMARY_FILE} (of a finished `hopper train`), found neither"
    )


def _read_ab(folder: Path) -> Source:
    path = folder / RESULTS_FILE
    results = check_record(Results, load_json(path), path)
    metrics = [name for run in results.runs for scores in run.scores.values() for name in scores]
    source = Source(folder, results, metrics[0] if metrics else "accuracy")
    for name, (run, *_) in source.by_name.items():
        label = Contender(name, run.engine, ()).folder
        run_folder = folder / "runs" / f"{label}-round-{run.round}"
        path = run_folder / SUMMARY_FILE
        source.learning[name] = run.epochs
        # A label may be no name of a file, for which Path.is_file would raise an error.
        if isfile(path):
            source.learning[name] = check_record(Summary, load_json(path), path).epochs
            source.add_spans(name, run_folder)
        else:
            source.missing.append(
                f"{name}: no folder of its round {run.round + 1} in runs: losses are "
                "shown per epoch, scores by epoch and the timeline not at all"
            )
    return source


def _read_run(folder: Path) -> Source:
    path, missing = folder / SUMMARY_FILE, ["machine, versions and commit: a run has no record"]
    values = load_json(path)
    if isinstance(values, dict) and "trial" in values:
        # What each epoch of the sweep cost. A trial may have run out of patience before its end.
        sweep_file = folder.resolve().parent / SUMMARY_FILE
        costs = check_record(Summary, load_json(sweep_file), sweep_file).epochs
        pairs = zip(costs, values.get("epochs", []), strict=False)
        values["epochs"] = [cost.model_dump() | epoch for cost, epoch in pairs]
        missing.append("seconds and bytes of this trial alone: those of all trials are shown")
    summary = check_record(Summary, values, path)
    config_file = folder / "config.json"
    config = load_json(config_file) if config_file.is_file() else {}
    if not isinstance(config, dict):
        raise RequestError(f"{config_file}: expected an object, given {config!r:.60}")
    if not config:
        missing.append("configuration: no config.json")
    # The page is about the best trial where it is about one model.
    for trial in summary.ranked_trials[:1]:
        for name, value in trial.overrides.items():
            section, _, key = name.partition(".")
            config.setdefault(section, {})[key] = value
    described: dict[str, Any] = {}
    try:
        graph = PartitionedGraph.open(config.get("data", {}).get("partitioned", ""))
        described = {"dataset": describe_dataset(graph), "partition": describe_partition(graph)}
    except (HopperError, OSError) as error:
        missing.append(f"graph and locality: the partitioned graph cannot be read ({error})")
    shown = {"model": config.get("model", {}), "options": config.get(summary.engine, {})}
    summary = summary.model_copy(update=shown)
    results = Results.model_validate(
        {"schema": 1, "config": config, "runs": [summary], **described}
    )
    source = Source(folder, results, summary.metric, summary, missing=missing)
    source.learning[summary.engine] = summary.epochs
    source.add_spans(summary.engine, folder)
    return source
