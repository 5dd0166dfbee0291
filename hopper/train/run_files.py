"""The files of a run's epochs and scores: a line for each epoch, and a summary at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hopper.engines import TrainStep
from hopper.files.whole_files import to_json, write_text
from hopper.graph.columns import RoundingError
from hopper.models import Objective
from hopper.train.evaluate import Scored
from hopper.train.results import (
    EPOCHS_FILE,
    SUMMARY_FILE,
    EpochRecord,
    TrialRecord,
    best_first,
    refuse_finished,
)
from hopper.train.trained_model import TrainedModel

CONFIG_FILE = "config.json"


class RunFiles:
    """Writes the files of epochs and scores on rank 0, and nothing on other ranks.

    If several models are trained, each of them also has a folder, with its losses, its scores and a
    configuration that trains it alone (docs/howto/sweeps.md).
    """

    def __init__(
        self,
        engine: TrainStep[Any, Any],
        models: Sequence[TrainedModel],
        run_dir: Path,
        objective: Objective,
    ) -> None:
        self._engine, self._models, self._objective = engine, models, objective
        self._trials = {number: model for number, model in enumerate(models) if model.state.name}
        self._run_dir = run_dir
        self._is_written = engine.state.cluster.rank == 0
        self._epochs: dict[Path, list[dict[str, Any]]] = {}
        self.wire_error: Mapping[str, RoundingError] = {}
        """of rows that are rounded between servers, by table"""

    @property
    def left_out(self) -> int:
        """How many updates of the run were left out; 0 on ranks that write nothing."""
        return _left_out(self._epochs.get(self._run_dir, []))

    def start(self) -> None:
        """Make the folders of a new run, unless its folder holds a finished one (RequestError)."""
        if self._is_written:
            refuse_finished(self._run_dir)
            for trial in self._trials.values():
                trial.folder.mkdir(parents=True, exist_ok=True)
                config = trial.state.config.model_dump_json(indent=1)
                write_text(trial.folder / CONFIG_FILE, config)

    def go_on(self) -> None:
        """Remove the lines of epochs that will be trained again, and keep the earlier ones."""
        if self._is_written:
            next_epochs = {model.folder: model.progress.epoch for model in self._trials.values()}
            next_epochs[self._run_dir] = max(model.progress.epoch for model in self._models)
            for folder, epoch in next_epochs.items():
                self._epochs[folder] = keep_epochs_before(folder, epoch)

    def add_epoch(self, record: EpochRecord, trials: Mapping[int, TrialRecord]) -> None:
        """Write an epoch's line, and the records of trials, by number, in their folders."""
        if self._is_written:
            self._add(self._run_dir, record)
            for number, trial in self._trials.items():
                if number in trials:
                    self._add(trial.folder, trials[number])

    def conclude(
        self,
        tests: Sequence[Scored],
        baselines: Mapping[str, Mapping[str, float]],
        memory: list[float],
    ) -> None:
        """Write the summaries of the models' test scores, which are empty if not scored, of the
        scores of a single answer by split, and of each rank's peak memory in MiB."""
        if not self._is_written:
            return
        facts = self._facts(memory)
        scores = [
            {
                "scores": {"val": model.progress.best_scores, "test": test.by_metric},
                "baselines": dict(baselines),
                "best_epoch": model.progress.best_epoch,
            }
            for model, test in zip(self._models, tests, strict=True)
        ]
        by_class = [
            {"by_class": {"test": test.by_class} if test.by_class else {}} for test in tests
        ]
        trials = []
        for number, trial in self._trials.items():
            description = {
                "trial": number,
                "overrides": dict(trial.state.overrides),
                "parameters": trial.state.packed.parameters.numel(),
                "diverged": trial.progress.diverged or None,
            }
            trials.append(description | scores[number])
            self._summarise(trial.folder, facts | trials[-1] | by_class[number])
        validated = {
            number: None if model.progress.diverged else model.progress.best_score
            for number, model in enumerate(self._models)
        }
        ranking = best_first(validated, self._objective.higher_is_better)
        of_all = {"ranking": ranking, "trials": trials} if trials else {}
        self._summarise(self._run_dir, facts | scores[ranking[0]] | of_all | by_class[ranking[0]])

    def _facts(self, memory: list[float]) -> dict[str, Any]:
        """Return the part of a summary that is the same for all models of the run."""
        engine, config = self._engine, self._engine.state.config
        approximations = engine.engine.spec.approximations(config)
        facts: dict[str, Any] = {"engine": engine.name, "exact": not approximations}
        if self._trials:
            facts |= config.hop.model_dump(include={"replicas", "share_sampling"})
        facts |= {"ranks": engine.state.cluster.world, "metric": self._objective.metric}
        facts |= {"peak_rss_mib": memory}
        if self.wire_error:
            errors = {table: error._asdict() for table, error in self.wire_error.items()}
            facts["feature_wire"] = {"form": config.cluster.feature_wire, "error": errors}
        return facts

    def _add(self, folder: Path, record: EpochRecord | TrialRecord) -> None:
        self._epochs[folder].append(asdict(record))
        with (folder / EPOCHS_FILE).open("a") as file:
            file.write(to_json(asdict(record)) + "\n")

    def _summarise(self, folder: Path, summary: dict[str, Any]) -> None:
        epochs = self._epochs[folder]
        summary |= {"epochs": epochs, "left_out": _left_out(epochs)}
        write_text(folder / SUMMARY_FILE, to_json(summary, indent=1))


def keep_epochs_before(folder: Path, epoch: int) -> list[dict[str, Any]]:
    """Remove the lines of ``epoch`` and later, which a resumed run writes again; return the records
    that remain. A last line that a crash left half written belongs to such an epoch too."""
    path = folder / EPOCHS_FILE
    records: list[dict[str, Any]] = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break
        if record["epoch"] < epoch:
            records.append(record)
    write_text(path, "".join(to_json(record) + "\n" for record in records))
    return records


def _left_out(epochs: Sequence[Mapping[str, Any]]) -> int:
    return sum(epoch["left_out"] for epoch in epochs)
