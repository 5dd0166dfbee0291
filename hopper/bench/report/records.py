"""What the files of a run and of an A/B hold, as far as a report shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hopper.errors import RequestError

Amount = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Kind = TypeVar("Kind", bound=BaseModel)


class Record(BaseModel):
    """An object of a file. Fields that a report does not show are kept as they are."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", protected_namespaces=())


class Scored(Record):
    """An object with scores by split and metric. The first metric selects the best model."""

    scores: dict[str, dict[str, float]] = {}

    def score(self, split: str, metric: str) -> float | None:
        """Return the score of a split by a metric. None if there is none."""
        return self.scores.get(split, {}).get(metric)


class ByClass(Record):
    """Scores by class, in columns of equal length."""

    names: Annotated[list[str], Field(alias="class")]
    precision: list[float | None]
    recall: list[float | None]
    f1: list[float | None]
    support: list[int]


class Epoch(Record):
    """One epoch of a run."""

    seconds: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
    loss: float
    iterations: int
    bytes: dict[str, Amount]
    rows: dict[str, Amount]
    stage_seconds: dict[str, Amount]
    iteration_losses: list[float] = []
    val: float | None = None
    scores: dict[str, float] = {}
    lookups: dict[str, tuple[Amount, Amount]] = {}


class Run(Scored):
    """A run of an engine in one round of an A/B."""

    engine: str
    label: str = ""
    options: dict[str, Any] = {}
    model: dict[str, Any] = {}
    round: int = 0
    epochs: Annotated[list[Epoch], Field(min_length=1)]
    nic_bytes: list[Amount] | None = None
    peak_rss_mib: list[Amount] = []
    exact: bool = True

    @property
    def name(self) -> str:
        """Its label, or else its engine."""
        return self.label or self.engine


class Trial(Scored):
    """A trial of a sweep, as the sweep's summary describes it."""

    trial: int
    overrides: dict[str, Any] = {}
    best_epoch: int | None = None
    diverged: str | None = None


class Summary(Run):
    """The content of a run's summary.json. A sweep's has its trials, and their ranking."""

    metric: str = "accuracy"
    baselines: dict[str, dict[str, float]] = {}
    best_epoch: int | None = None
    by_class: dict[str, ByClass] = {}
    trials: list[Trial] = []
    ranking: list[int] = []

    @property
    def ranked_trials(self) -> list[Trial]:
        """The trials of a sweep, the best first."""
        by_number = {trial.trial: trial for trial in self.trials}
        return [by_number[number] for number in self.ranking if number in by_number]


class Parity(Record):
    """How far each engine's gradients and losses differ from the reference's."""

    reference: str = ""
    max_relative_gradient_difference: dict[str, float] = {}
    in_float64: dict[str, dict[str, float]] = {}
    spread: dict[str, float] = {}
    max_relative_loss_difference: dict[str, float] = {}
    losses_in_float64: dict[str, float] = {}
    not_judged: list[str] = []


class Results(Record):
    """The content of results.json."""

    version: Literal[1] = Field(alias="schema")
    commit: str = ""
    versions: dict[str, str | None] = {}
    machine: dict[str, Any] = {}
    config: dict[str, Any] = {}
    dataset: dict[str, Any] = {}
    partition: dict[str, Any] = {}
    runs: Annotated[list[Run], Field(min_length=1)]
    parity: Parity = Parity()


def load_json(path: Path) -> Any:
    """Read a JSON file. An error names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RequestError(f"{path}: expected JSON: {error}") from error


def check_record(record_class: type[Kind], values: Any, where: Path | str) -> Kind:
    """Make a record. An error names the place and the field."""
    try:
        return record_class.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "the file"
        given = str(first["input"])
        given = given if len(given) <= 60 else f"{given[:57]}..."
        raise RequestError(f"{where}: {field}: {first['msg']}; given {given}") from error
