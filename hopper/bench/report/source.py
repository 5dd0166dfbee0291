"""The files that a report is made of: the folder of an A/B, or of a single training run.

results.json or summary.json must exist and be valid. Everything else (spans, loss curves, the
partitioned graph) is optional. :attr:`Source.missing` says what does not exist.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from hopper.bench.contender import Contender
from hopper.bench.layer_work import LayerWork, read_layer_work
from hopper.bench.report.spans import Timeline, read_timelines
from hopper.bench.results import RESULTS_FILE, describe_dataset, describe_partition
from hopper.errors import HopperError, RequestError
from hopper.partition import PartitionedGraph
from hopper.run_log import STAGES
from hopper.traffic import CAUSES
from hopper.train.results import ROW_KINDS, SPANS_FOLDER, SUMMARY_FILE, split_scores

CONFIG_FILE: Final = "config.json"
RUNS_FOLDER: Final = "runs"

_Kind = TypeVar("_Kind", bound=BaseModel)


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


Amount = Annotated[float, Field(ge=0.0), AfterValidator(_finite)]


def _fill_missing(names: Sequence[str]) -> BeforeValidator:
    """Make a validator that sets names without a value to 0. The names come first, in order."""

    def fill(value: Any) -> Any:
        return {**dict.fromkeys(names, 0.0), **value} if isinstance(value, Mapping) else value

    return BeforeValidator(fill)


class _Read(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class _Scored(_Read):
    """An object with scores by split and metric. The first metric selects the best model."""

    scores: dict[str, dict[str, float]] = {}

    @model_validator(mode="before")
    @classmethod
    def _name_metrics(cls, value: Any) -> Any:
        """Convert an older file, which has one score for each split under "accuracy"."""
        is_old = isinstance(value, dict) and "scores" not in value
        if is_old and isinstance(value.get("accuracy"), dict):
            return {**value, "scores": split_scores(value)}
        return value

    def score(self, split: str, metric: str) -> float | None:
        """Return the score of a split by a metric. None if there is none."""
        return self.scores.get(split, {}).get(metric)


class ByClass(_Read):
    """Scores by class (:mod:`hopper.models.class_scores`), in columns of equal length."""

    names: Annotated[list[str], Field(alias="class")]
    precision: list[float | None]
    recall: list[float | None]
    f1: list[float | None]
    support: list[int]

    @model_validator(mode="after")
    def _check_lengths(self) -> ByClass:
        lengths = [len(column) for column in (self.precision, self.recall, self.f1, self.support)]
        if set(lengths) != {len(self.names)}:
            raise ValueError(f"expected {len(self.names)} classes in each column, given {lengths}")
        return self


class Epoch(_Read):
    """One epoch of a run, as results.json and summary.json describe it."""

    seconds: Annotated[float, Field(gt=0.0), AfterValidator(_finite)]
    loss: float
    iterations: int
    bytes: Annotated[dict[str, Amount], _fill_missing(CAUSES)]
    rows: Annotated[dict[str, Amount], _fill_missing(ROW_KINDS)]
    stage_seconds: Annotated[dict[str, Amount], _fill_missing(STAGES)]
    iteration_losses: list[float] = []
    val: float | None = None
    train: float | None = None
    scores: dict[str, float] = {}
    lookups: dict[str, tuple[Amount, Amount]] = {}
    sent_bytes: Amount = 0


class Run(_Scored):
    """A run of an engine in one round."""

    engine: str
    label: str = ""
    options: dict[str, Any] = {}
    model: dict[str, Any] = {}
    round: int = 0
    epochs: Annotated[list[Epoch], Field(min_length=1)]
    nic_bytes: list[Any] | None = None
    peak_rss_mib: list[Amount] = []
    exact: bool | None = None

    @property
    def name(self) -> str:
        """The name of the run in the report: its label, or else its engine."""
        return self.label or self.engine


class Again(_Read):
    """A gradient's difference in float64."""

    difference: float


class Parity(_Read):
    """Differences between each engine's gradients and losses and the reference's.

    Attributes
    ----------
    in_float64, losses_in_float64: the engines that float32 could not judge.
    spread: by engine that float32 could not judge, how far one process in float32 differs between
        orders of summation.
    not_judged: the engines that round on purpose.
    """

    reference: str = ""
    max_relative_gradient_difference: dict[str, float] = {}
    in_float64: dict[str, Again] = {}
    spread: dict[str, float] = {}
    max_relative_loss_difference: dict[str, float] = {}
    losses_in_float64: dict[str, float] = {}
    not_judged: list[str] = []


class Results(_Read):
    """The content of results.json."""

    version: Literal[1] = Field(alias="schema")
    commit: str = ""
    versions: dict[str, str | None] = {}
    machine: dict[str, Any] = {}
    config: dict[str, Any] = {}
    dataset: dict[str, Any] = {}
    partition: dict[str, Any] = {}
    runs: Annotated[list[Run], Field(min_length=1)]
    parity: Parity | None = None


class Trial(_Scored):
    """A trial of a sweep, as the sweep's summary describes it."""

    trial: int
    overrides: dict[str, Any] = {}
    best_epoch: int | None = None


class Summary(_Scored):
    """The content of a run's summary.json. A sweep's has its trials, and their ranking."""

    engine: str
    exact: bool | None = None
    metric: str = "accuracy"
    baselines: dict[str, dict[str, float]] = {}
    best_epoch: int | None = None
    by_class: dict[str, ByClass] = {}
    peak_rss_mib: list[Amount] = []
    epochs: Annotated[list[Epoch], Field(min_length=1)]
    trials: list[Trial] = []
    ranking: list[int] = []

    @property
    def ranked_trials(self) -> list[Trial]:
        """The trials of a sweep, the best first."""
        by_number = {trial.trial: trial for trial in self.trials}
        return [by_number[number] for number in self.ranking if number in by_number]


@dataclass(frozen=True)
class Source:
    """The content of a report.

    Attributes
    ----------
    kind: "ab", or "run" for a single training run. The results of a single run have no parity.
    learning: by name of run, the epochs of its first round with losses per iteration and scores.
    timelines: by name of run, its recorded iterations (:mod:`hopper.bench.report.spans`).
    work: by name of run, how its layers are divided among ranks. Empty if the engine does not
        divide them.
    missing: sentences that say what cannot be shown, and why.
    summary: the summary of a single run. None for an A/B.
    """

    folder: Path
    kind: Literal["ab", "run"]
    results: Results
    metric: str
    learning: dict[str, list[Epoch]]
    timelines: dict[str, list[Timeline]]
    work: dict[str, list[LayerWork]]
    missing: list[str]
    summary: Summary | None = None

    @property
    def names(self) -> list[str]:
        """The names that are compared, in the order of their first runs."""
        return list(dict.fromkeys(run.name for run in self.results.runs))

    def runs_of(self, name: str) -> list[Run]:
        """Return the runs of a name, in the order of rounds."""
        return sorted((r for r in self.results.runs if r.name == name), key=lambda run: run.round)


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
        f"{folder}: expected a folder with {RESULTS_FILE} (of `hopper bench ab`) or "
        f"{SUMMARY_FILE} (of a finished `hopper train`), found neither"
    )


def _read_ab(folder: Path) -> Source:
    results = _parse(Results, folder / RESULTS_FILE)
    firsts: dict[str, Run] = {}
    for run in results.runs:
        if run.name not in firsts or run.round < firsts[run.name].round:
            firsts[run.name] = run
    learning: dict[str, list[Epoch]] = {}
    timelines: dict[str, list[Timeline]] = {}
    work: dict[str, list[LayerWork]] = {}
    missing: list[str] = []
    metrics = [name for run in results.runs for scores in run.scores.values() for name in scores]
    metric = metrics[0] if metrics else "accuracy"
    for name, run in firsts.items():
        learning[name] = run.epochs
        run_folder = _run_folder(folder, run)
        if run_folder is None:
            missing.append(
                f"{name}: no folder of its round {run.round + 1} in {RUNS_FOLDER}: losses are "
                "shown per epoch, scores and time steps not at all"
            )
            continue
        summary = _parse(Summary, run_folder / SUMMARY_FILE)
        learning[name], metric = summary.epochs, summary.metric
        _add_timelines(name, run_folder, timelines, missing)
        work[name] = read_layer_work(run_folder / SPANS_FOLDER)
    return Source(folder, "ab", results, metric, learning, timelines, work, missing)


def _read_run(folder: Path) -> Source:
    missing = ["Machine, versions and commit: a run's folder does not hold them"]
    values = _load_json(folder / SUMMARY_FILE)
    if isinstance(values, dict) and "trial" in values:
        _add_costs_of_sweep(values, folder.resolve().parent / SUMMARY_FILE)
        missing.append("Seconds and bytes of this trial alone: those of all trials are shown")
    summary = _check(Summary, values, folder / SUMMARY_FILE)
    config = _config(folder, missing)
    if summary.ranked_trials:
        # The page is about the best trial where it is about one model.
        for name, value in summary.ranked_trials[0].overrides.items():
            section, _, key = name.partition(".")
            config.setdefault(section, {})[key] = value
    described = _describe_graph(config, missing)
    run = {
        **summary.model_dump(exclude={"exact", "metric", "by_class", "trials", "ranking"}),
        "exact": summary.exact,
        "model": config.get("model", {}),
        "options": config.get(summary.engine, {}),
    }
    results = Results.model_validate({"schema": 1, "config": config, "runs": [run], **described})
    timelines: dict[str, list[Timeline]] = {}
    _add_timelines(summary.engine, folder, timelines, missing)
    learning = {summary.engine: summary.epochs}
    work = {summary.engine: read_layer_work(folder / SPANS_FOLDER)}
    return Source(
        folder, "run", results, summary.metric, learning, timelines, work, missing, summary
    )


def _add_costs_of_sweep(trial: dict[str, Any], sweep_file: Path) -> None:
    """Add what each epoch of a sweep cost to the epochs of one of its trials."""
    costs = _parse(Summary, sweep_file).epochs
    # A trial that ran out of patience has fewer epochs than the sweep.
    trial["epochs"] = [
        cost.model_dump() | epoch for cost, epoch in zip(costs, trial["epochs"], strict=False)
    ]


def _add_timelines(
    name: str, run_folder: Path, timelines: dict[str, list[Timeline]], missing: list[str]
) -> None:
    spans = run_folder / SPANS_FOLDER
    recorded = read_timelines(spans) if spans.is_dir() else []
    if recorded:
        timelines[name] = recorded
    else:
        missing.append(
            f"{name}: no recorded spans in {run_folder.name}/{SPANS_FOLDER}: no time steps"
        )


def _run_folder(folder: Path, run: Run) -> Path | None:
    """Return the folder of a run's files. None if it does not exist."""
    name = Contender(run.name, run.engine, ()).folder
    run_folder = folder / RUNS_FOLDER / f"{name}-round-{run.round}"
    try:
        return run_folder if (run_folder / SUMMARY_FILE).is_file() else None
    except OSError:  # the label is too long for the name of a file
        return None


def _config(folder: Path, missing: list[str]) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        missing.append(f"Configuration: no {CONFIG_FILE}")
        return {}
    values = _load_json(path)
    if not isinstance(values, dict):
        raise RequestError(f"{path}: expected an object, given {type(values).__name__}")
    return values


def _describe_graph(config: Mapping[str, Any], missing: list[str]) -> dict[str, Any]:
    """Describe the graph and partition of a single run, if its partitioned graph can be read."""
    path = config.get("data", {}).get("partitioned", "")
    try:
        graph = PartitionedGraph.open(path)
        return {"dataset": describe_dataset(graph), "partition": describe_partition(graph)}
    except (HopperError, OSError) as error:
        missing.append(f"Graph and locality: the partitioned graph cannot be read ({error})")
        return {}


def _load_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RequestError(f"{path}: expected JSON: {error}") from error


def _parse(record_class: type[_Kind], path: Path) -> _Kind:
    return _check(record_class, _load_json(path), path)


def _check(record_class: type[_Kind], values: Any, path: Path) -> _Kind:
    try:
        return record_class.model_validate(values)
    except ValidationError as error:
        first_error = error.errors()[0]
        field = ".".join(str(key) for key in first_error["loc"]) or "the file"
        text = str(first_error["input"])
        shortened = text if len(text) <= 60 else text[:57] + "..."
        raise RequestError(f"{path}: {field}: {first_error['msg']}; given {shortened}") from error
