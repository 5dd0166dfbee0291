"""The training loop of one rank that trains several models at once (docs/sweeps.md)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hopper.engines.trials import Trial, Trials, TrialsState
from hopper.train.checkpoint import (
    CHECKPOINT_FILE,
    Progress,
    load_training,
    save_training,
    training_state,
)
from hopper.train.console import RunConsole
from hopper.train.evaluate import Evaluator
from hopper.train.meter import EpochMeter
from hopper.train.results import (
    EpochRecord,
    TrialRecord,
    append_epoch,
    keep_epochs_before,
    peak_rss_mib,
    refuse_finished,
)
from hopper.train.selection import ModelSelection, hand_out
from hopper.train.trial_results import best_first, trial_folder, write_configs, write_summaries


class TrialsTrainer:
    """Runs the epochs of all trials on one rank.

    A trial that runs out of patience no longer travels; the others go on. Files are written by rank
    0: the run's own (what epochs cost), and a folder per trial (losses, scores, best model).

    Parameters
    ----------
    overrides: what each trial replaces in the configuration, by "section.key".
    identity: what a checkpoint must agree with to be resumed (``run_identity``).
    """

    def __init__(
        self,
        state: TrialsState,
        evaluator: Evaluator,
        overrides: list[dict[str, Any]],
        run_dir: Path,
        identity: dict[str, Any],
    ) -> None:
        self.state = state
        self.engine = Trials(state)
        self._evaluator = evaluator
        self._overrides = overrides
        self._run_dir = run_dir
        self._identity = identity
        self.on_trained: Callable[[Callable[[str], None]], None] = lambda _say: None
        """called after training, before the summary is written; every rank calls it"""
        self.on_epoch: Callable[[EpochRecord], None] = lambda _record: None
        """called with every finished epoch's record"""
        self._is_first = state.cluster.rank == 0
        self._selections = [
            ModelSelection(
                evaluator, state.cluster, each.packed, each.config.train,
                trial_folder(run_dir, each.index),
            )
            for each in state.trials
        ]  # fmt: skip
        self._meter = EpochMeter(
            state.cluster, state.rows, state.log, state.config.cluster.interface
        )
        self._epochs: list[dict[str, Any]] = []
        self._trial_epochs: list[list[dict[str, Any]]] = [[] for _ in state.trials]

    def run(self) -> None:
        """Train to the end; see :func:`hopper.train.rank.run_rank` for errors."""
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self._resume_or_start()
        with RunConsole(self._is_first, self._evaluator.objective.metric) as console:
            self._introduce(console)
            while active := self._active():
                record = self._train_epoch(active, console)
                records = self._trial_records(active)
                self._validate(active, record, records)
                self._finish_epoch(active, record, records, console)
            self._conclude(console)

    def _progress(self, trial: int) -> Progress:
        return self._selections[trial].progress

    def _active(self) -> list[int]:
        """The trials that are still trained; all are at the same epoch and iteration."""
        epochs = self.state.config.train.epochs
        return [
            index
            for index, selection in enumerate(self._selections)
            if selection.progress.epoch < epochs and not selection.out_of_patience
        ]

    def _train_epoch(self, active: list[int], console: RunConsole) -> EpochRecord:
        state, place = self.state, self._progress(active[0])
        console.start_epoch(place.epoch, place.iteration, state.iterations)
        state.cluster.arrive(f"starting epoch {place.epoch}")
        for trial in state.trials:
            trial.packed.module.train()
        self._meter.start(place.epoch)
        while place.iteration < state.iterations:
            state.log.within(epoch=place.epoch, iteration=place.iteration)
            with self._meter.iteration():
                losses = self.engine.train_step(place.epoch, place.iteration, active)
            for index in active:
                progress = self._progress(index)
                # A loss is known at home only, until all are added up.
                progress.losses.append(losses.get(index, 0.0))
                progress.iteration += 1
                progress.step += 1
            console.step(losses.get(active[0], math.nan))
            self._checkpoint_if_due()
        everyones = self._losses(active)
        mean = [sum(each) / len(active) for each in zip(*everyones, strict=True)]
        record = self._meter.finish(mean)
        record.engine, record.ranks = self.engine.name, state.cluster.world
        state.log.flush()
        return record

    def _losses(self, trials: list[int]) -> list[list[float]]:
        """The epoch's losses of some trials, known on every rank."""
        known = torch.tensor([self._progress(each).losses for each in trials], dtype=torch.float64)
        self.state.cluster.all_reduce(known, "control", "adding up losses")
        found: list[list[float]] = known.tolist()
        return found

    def _trial_records(self, active: list[int]) -> dict[int, TrialRecord]:
        records = {}
        for index, losses in zip(active, self._losses(active), strict=True):
            loss = sum(losses) / len(losses)
            epoch = self._progress(index).epoch
            records[index] = TrialRecord(epoch, loss, len(losses), losses)
        return records

    def _validate(
        self, active: list[int], record: EpochRecord, records: dict[int, TrialRecord]
    ) -> None:
        """Score every trial that was trained; the best score stands for the whole epoch."""
        if not self._selections[active[0]].is_due(record.epoch):
            return
        with self._meter.evaluation(record):
            for index in active:
                self._hand_out(self.state.trials[index])
                records[index].val = self._selections[index].validate(record.epoch)
        scores = {index: records[index].val for index in active}
        record.val = scores[best_first(scores, self._higher_is_better)[0]]

    @property
    def _higher_is_better(self) -> bool:
        return self._evaluator.objective.higher_is_better

    def _finish_epoch(
        self,
        active: list[int],
        record: EpochRecord,
        records: dict[int, TrialRecord],
        console: RunConsole,
    ) -> None:
        console.end_epoch(record)
        self._epochs.append(asdict(record))
        if self._is_first:
            append_epoch(self._run_dir, record)
        self.on_epoch(record)
        for index in active:
            self._trial_epochs[index].append(asdict(records[index]))
            if self._is_first:
                append_epoch(trial_folder(self._run_dir, index), records[index])
            progress = self._progress(index)
            progress.epoch += 1
            progress.iteration, progress.losses = 0, []
            if self._selections[index].out_of_patience:
                patience = self.state.config.train.patience
                console.say(f"trial {index}: no better score in {patience} epochs: stopped")
        if self.state.config.train.checkpoint_every:
            self._save_checkpoint()

    def _conclude(self, console: RunConsole) -> None:
        """Score every trial's best model on the test split, and write the summaries."""
        state = self.state
        accuracy = []
        for trial, selection in zip(state.trials, self._selections, strict=True):
            self._hand_out(trial)
            accuracy.append({"val": selection.progress.best_score, "test": selection.test()})
        self.on_trained(console.say)
        memory = peak_rss_mib(state.cluster)
        if not self._is_first:
            return
        facts = {
            "engine": self.engine.name,
            "exact": self.engine.exact,
            "replicas": state.config.hop.replicas,
            "share_sampling": state.config.hop.share_sampling,
            "ranks": state.cluster.world,
            "metric": self._evaluator.objective.metric,
            "peak_rss_mib": memory,
        }
        trials = [
            {
                "trial": trial.index,
                "overrides": self._overrides[trial.index],
                "parameters": trial.packed.parameters.numel(),
                "accuracy": accuracy[trial.index],
                "best_epoch": self._progress(trial.index).best_epoch,
            }
            for trial in state.trials
        ]
        write_summaries(
            self._run_dir, facts, trials, self._trial_epochs, self._epochs, self._higher_is_better
        )
        console.say(f"results in {self._run_dir}")

    def _resume_or_start(self) -> None:
        state = self.state
        first_epoch = [0] * len(state.trials)
        if state.config.train.resume:
            first_epoch = self._load_checkpoint()
        elif self._is_first:
            refuse_finished(self._run_dir)
            write_configs(self._run_dir, [trial.config for trial in state.trials])
        if self._is_first:
            self._epochs = keep_epochs_before(self._run_dir, max(first_epoch))
            self._trial_epochs = [
                keep_epochs_before(trial_folder(self._run_dir, index), epoch)
                for index, epoch in enumerate(first_epoch)
            ]

    def _load_checkpoint(self) -> list[int]:
        """Go on from the checkpoint in the run's folder; returns every trial's epoch."""
        state = self.state
        saved = load_training(self._run_dir / CHECKPOINT_FILE, self._identity, self._all_tensors())
        for trial, selection, values in zip(state.trials, self._selections, saved, strict=True):
            selection.progress = Progress(**values)
            if trial.home != state.cluster.rank:
                selection.progress.losses = [0.0] * len(selection.progress.losses)
        state.log.event("resumed", step=max(each["step"] for each in saved))
        return [each["epoch"] for each in saved]

    def _checkpoint_if_due(self) -> None:
        every = self.state.config.train.checkpoint_every
        place = self._progress(self._active()[0])
        if every and place.iteration < self.state.iterations and place.step % every == 0:
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        progress = [asdict(selection.progress) for selection in self._selections]
        active = self._active()
        if active:
            for index, losses in zip(active, self._losses(active), strict=True):
                progress[index]["losses"] = losses
        for trial in self.state.trials:
            self._hand_out(trial, *trial.optimizer.state().values())
        if self._is_first:
            path = self._run_dir / CHECKPOINT_FILE
            save_training(path, self._identity, self._all_tensors(), progress)

    def _hand_out(self, trial: Trial, *more: Tensor) -> None:
        """Give every rank what a trial's home knows: its parameters, and ``more`` tensors."""
        what = f"handing out trial {trial.index}"
        for tensor in (trial.packed.parameters, *more):
            hand_out(self.state.cluster, tensor, trial.home, what)

    def _all_tensors(self) -> dict[str, Tensor]:
        return {
            f"trial-{trial.index}.{name}": tensor
            for trial in self.state.trials
            for name, tensor in training_state(trial.packed.module, trial.optimizer).items()
        }

    def _introduce(self, console: RunConsole) -> None:
        state = self.state
        console.say(
            f"engine {self.engine.name}, independent replicas: {len(state.trials)} trials, "
            f"{state.cluster.world} ranks on {state.cluster.servers} servers, {state.iterations} "
            f"iterations an epoch, {state.config.train.dtype} on {state.cluster.device}"
        )
