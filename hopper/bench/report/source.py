"""What a report is made of: an A/B's folder, or that of a single training run.

results.json, or summary.json, has to be there and sound. Everything else (spans, loss curves, the
partitioned graph) adds to the report; where it is gone, :attr:`Source.missing` says so.
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


def _known(names: Sequence[str]) -> BeforeValidator:
    """What is not told of a group counts as 0, in the group's own order; other names follow."""

    def fill(value: Any) -> Any:
        return {**dict.fromkeys(names, 0.0), **value} if isinstance(value, Mapping) else value

    return BeforeValidator(fill)


class _Read(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class _Scored(_Read):
    """What has scores by split and metric, the metric that selects the best model first."""

    scores: dict[str, dict[str, float]] = {}

    @model_validator(mode="before")
    @classmethod
    def _name_metrics(cls, value: Any) -> Any:
        """An older file has one score a split, under "accuracy"."""
        is_old = isinstance(value, dict) and "scores" not in value
        if is_old and isinstance(value.get("accuracy"), dict):
            return {**value, "scores": split_scores(value)}
        return value

    def score(self, split: str, metric: str) -> float | None:
        """One of them; None where there is none."""
        return self.scores.get(split, {}).get(metric)


class ByClass(_Read):
    """Scores class by class, as columns of one length; see :mod:`hopper.models.class_scores`."""

    names: Annotated[list[str], Field(alias="class")]
    precision: list[float | None]
    recall: list[float | None]
    f1: list[float | None]
    support: list[int]

    @model_validator(mode="after")
    def _check_lengths(self) -> ByClass:
        lengths = [len(each) for each in (self.precision, self.recall, self.f1, self.support)]
        if set(lengths) != {len(self.names)}:
            raise ValueError(f"expected {len(self.names)} classes in each column, given {lengths}")
        return self


class Epoch(_Read):
    """One epoch of a run; see design.md's results schema."""

    seconds: Annotated[float, Field(gt=0.0), AfterValidator(_finite)]
    loss: float
    iterations: int
    bytes: Annotated[dict[str, Amount], _known(CAUSES)]
    rows: Annotated[dict[str, Amount], _known(ROW_KINDS)]
    stage_seconds: Annotated[dict[str, Amount], _known(STAGES)]
    iteration_losses: list[float] = []
    val: float | None = None
    train: float | None = None
    scores: dict[str, float] = {}
    lookups: dict[str, tuple[Amount, Amount]] = {}
    sent_bytes: Amount = 0


class Run(_Scored):
    """One run of an engine in one round."""

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
        """What the run is called in the report: its label, else its engine."""
        return self.label or self.engine


class Again(_Read):
    """What float64 says; see :class:`hopper.bench.parity.InFloat64`."""

    difference: float
    rounding: float


class Parity(_Read):
    """How far each engine's gradients and losses are from the reference's.

    in_float64, losses_in_float64: of those that float32 could not judge.
    not_judged: those that round on purpose.
    """

    reference: str = ""
    max_relative_gradient_difference: dict[str, float] = {}
    in_float64: dict[str, Again] = {}
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


class Summary(_Scored):
    """The content of a run's summary.json."""

    engine: str
    exact: bool | None = None
    metric: str = "accuracy"
    baselines: dict[str, dict[str, float]] = {}
    best_epoch: int | None = None
    by_class: dict[str, ByClass] = {}
    peak_rss_mib: list[Amount] = []
    epochs: Annotated[list[Epoch], Field(min_length=1)]


@dataclass(frozen=True)
class Source:
    """Everything that a report tells.

    kind: "ab", or "run" for a single training run, whose results hold one run and no parity.
    learning: by name of run, the epochs of its first round with losses per iteration and scores.
    timelines: by name of run, its recorded iterations; see :mod:`hopper.bench.report.spans`.
    work: by name of run, its layers' division among ranks, where the engine divides them.
    summary: of a single run; None of an A/B.
    missing: sentences on what could not be shown and why.
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
        """What is compared, in order of the first run."""
        return list(dict.fromkeys(run.name for run in self.results.runs))

    def runs_of(self, name: str) -> list[Run]:
        """The runs of one name, in order of rounds."""
        return sorted((r for r in self.results.runs if r.name == name), key=lambda run: run.round)


def read_source(folder: Path) -> Source:
    """Read an A/B's folder, or a single run's.

    Raises
    ------
    RequestError: the folder holds neither; or a file of it is not what it should be (file and
        field named).
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
    results = _parsed(Results, folder / RESULTS_FILE)
    firsts: dict[str, Run] = {}
    for run in results.runs:
        if run.name not in firsts or run.round < firsts[run.name].round:
            firsts[run.name] = run
    learning: dict[str, list[Epoch]] = {}
    timelines: dict[str, list[Timeline]] = {}
    work: dict[str, list[LayerWork]] = {}
    missing: list[str] = []
    told = [name for run in results.runs for scores in run.scores.values() for name in scores]
    metric = told[0] if told else "accuracy"
    for name, run in firsts.items():
        learning[name] = run.epochs
        place = _run_folder(folder, run)
        if place is None:
            missing.append(
                f"{name}: no folder of its round {run.round + 1} in {RUNS_FOLDER}: losses are "
                "shown per epoch, scores and time steps not at all"
            )
            continue
        summary = _parsed(Summary, place / SUMMARY_FILE)
        learning[name], metric = summary.epochs, summary.metric
        _add_timelines(name, place, timelines, missing)
        work[name] = read_layer_work(place / SPANS_FOLDER)
    return Source(folder, "ab", results, metric, learning, timelines, work, missing)


def _read_run(folder: Path) -> Source:
    summary = _parsed(Summary, folder / SUMMARY_FILE)
    missing = ["Machine, versions and commit: a run's folder does not hold them"]
    config = _config(folder, missing)
    described = _described(config, missing)
    run = {
        **summary.model_dump(exclude={"exact", "metric", "by_class"}),
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


def _add_timelines(
    name: str, place: Path, timelines: dict[str, list[Timeline]], missing: list[str]
) -> None:
    spans = place / SPANS_FOLDER
    found = read_timelines(spans) if spans.is_dir() else []
    if found:
        timelines[name] = found
    else:
        missing.append(f"{name}: no recorded spans in {place.name}/{SPANS_FOLDER}: no time steps")


def _run_folder(folder: Path, run: Run) -> Path | None:
    """Where a run's own files are; None where they are gone."""
    name = Contender(run.name, run.engine, ()).folder
    place = folder / RUNS_FOLDER / f"{name}-round-{run.round}"
    try:
        return place if (place / SUMMARY_FILE).is_file() else None
    except OSError:  # a label too long to name a file
        return None


def _config(folder: Path, missing: list[str]) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        missing.append(f"Configuration: no {CONFIG_FILE}")
        return {}
    found = _loaded(path)
    if not isinstance(found, dict):
        raise RequestError(f"{path}: expected an object, given {type(found).__name__}")
    return found


def _described(config: Mapping[str, Any], missing: list[str]) -> dict[str, Any]:
    """Graph and partition of a single run, from the partitioned directory that it read."""
    path = config.get("data", {}).get("partitioned", "")
    try:
        graph = PartitionedGraph.open(path)
        return {"dataset": describe_dataset(graph), "partition": describe_partition(graph)}
    except (HopperError, OSError) as error:
        missing.append(f"Graph and locality: the partitioned graph cannot be read ({error})")
        return {}


def _loaded(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RequestError(f"{path}: expected JSON: {error}") from error


def _parsed(kind: type[_Kind], path: Path) -> _Kind:
    try:
        return kind.model_validate(_loaded(path))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        given = str(first["input"])
        told = given if len(given) <= 60 else given[:57] + "..."
        raise RequestError(f"{path}: {field}: {first['msg']}; given {told}") from error
