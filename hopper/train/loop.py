"""The training loop of one rank: epochs, scores, checkpoints, results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hopper.engines import Engine, TrainState
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.migrate.packed_model import PackedModel
from hopper.train.checkpoint import (
    CHECKPOINT_FILE,
    Progress,
    load_checkpoint,
    save_checkpoint,
)
from hopper.train.console import RunConsole
from hopper.train.evaluate import Evaluator
from hopper.train.learnable_checkpoints import LearnableCheckpoints
from hopper.train.meter import EpochMeter
from hopper.train.replay import decisions_of, read_decisions
from hopper.train.results import (
    SUMMARY_FILE,
    EpochRecord,
    append_epoch,
    keep_epochs_before,
    peak_rss_mib,
    refuse_finished,
    write_text,
)
from hopper.train.selection import ModelSelection
from hopper.train.tensor_file import save_tensors

GRADIENTS_FOLDER = "gradients"


class Trainer:
    """Runs a configuration's epochs on one rank.

    Files are written by rank 0, into ``run_dir``: a line per epoch, the best model, checkpoints,
    recorded gradients and the summary. Every rank writes its own spans.

    Parameters
    ----------
    identity: what a checkpoint must agree with to be resumed (``run_identity``).
    """

    def __init__(
        self,
        state: TrainState,
        engine: Engine,
        schedule: RootSchedule,
        evaluator: Evaluator,
        run_dir: Path,
        identity: dict[str, Any],
    ) -> None:
        self.state = state
        self.engine = engine
        self.schedule = schedule
        self._evaluator = evaluator
        self._run_dir = run_dir
        self._identity = identity
        self.on_trained: Callable[[Callable[[str], None]], None] = lambda _say: None
        """called after training, before the summary is written; every rank calls it"""
        self.on_epoch: Callable[[EpochRecord], None] = lambda _record: None
        """called with every finished epoch's record"""
        self._is_first = state.cluster.rank == 0
        self._selection = ModelSelection(
            evaluator, state.cluster, state.packed, state.config.train, run_dir, engine.complete
        )
        self._epochs: list[dict[str, Any]] = []
        self._learnable: LearnableCheckpoints | None = None
        if state.learnable is not None:
            self._learnable = LearnableCheckpoints(
                run_dir, state.cluster, state.learnable, identity
            )
        engine.on_gradient = self._record_gradient
        self._meter = EpochMeter(
            state.cluster,
            state.rows,
            state.log,
            state.config.cluster.interface,
            state.learnable,
        )
        self._replay = read_decisions(state.config, state.cluster.world)

    @property
    def _progress(self) -> Progress:
        return self._selection.progress

    def run(self) -> None:
        """Train to the end; see :func:`hopper.train.rank.run_rank` for errors."""
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self._resume_or_start()
        config = self.state.config.train
        metric = self._evaluator.objective.metric
        with RunConsole(self._is_first, metric) as console:
            self._introduce(console)
            while self._progress.epoch < config.epochs and not self._selection.out_of_patience:
                record = self._train_epoch(console)
                if self._selection.is_due(record.epoch):
                    with self._meter.evaluation(record):
                        record.val = self._selection.validate(record.epoch)
                self._finish_epoch(record, console)
            if self._selection.out_of_patience:
                console.say(f"no better score in {config.patience} epochs: stopped")
            self._conclude(console)

    def _train_epoch(self, console: RunConsole) -> EpochRecord:
        state, progress = self.state, self._progress
        console.start_epoch(progress.epoch, progress.iteration, self.schedule.iterations)
        state.cluster.arrive(f"starting epoch {progress.epoch}")
        state.packed.module.train()
        self.engine.replayed = decisions_of(self._replay, progress.epoch)
        self._meter.start(progress.epoch)
        while progress.iteration < self.schedule.iterations:
            state.log.within(epoch=progress.epoch, iteration=progress.iteration)
            batch = self.engine.upcoming or self._batch(progress.iteration)
            is_last = progress.iteration + 1 == self.schedule.iterations
            self.engine.upcoming = None if is_last else self._batch(progress.iteration + 1)
            self.engine.records = progress.step in state.config.train.record_gradients
            with self._meter.iteration():
                report = self.engine.train_step(batch)
            progress.losses.append(report.loss)
            progress.iteration += 1
            progress.step += 1
            console.step(report.loss)
            self._checkpoint_if_due()
        record = self._meter.finish(progress.losses)
        record.engine, record.ranks = self.engine.name, state.cluster.world
        record.decisions = self.engine.decisions()
        self.engine.epoch_ended(record.typical_seconds)
        state.log.flush()
        return record

    def _batch(self, iteration: int) -> GlobalBatch:
        return self.schedule.batch(self._progress.epoch, iteration)

    def _finish_epoch(self, record: EpochRecord, console: RunConsole) -> None:
        console.end_epoch(record)
        self._epochs.append(asdict(record))
        if self._is_first:
            append_epoch(self._run_dir, record)
        self.on_epoch(record)
        self._progress.epoch += 1
        self._progress.iteration = 0
        self._progress.losses = []
        if self.state.config.train.checkpoint_every:
            self._save_checkpoint()

    def _conclude(self, console: RunConsole) -> None:
        """Score the best model on the test split, and write the summary."""
        metric = self._evaluator.objective.metric
        accuracy = {"val": self._progress.best_score, "test": self._selection.test()}
        if accuracy["test"] is not None:
            console.say(f"test {metric} {accuracy['test']:.4f} (best epoch "
                        f"{self._progress.best_epoch})")  # fmt: skip
        self.on_trained(console.say)
        memory = peak_rss_mib(self.state.cluster)
        if self.state.learnable is not None:
            rank = self.state.cluster.rank
            path = self._run_dir / f"learnable-rank-{rank}.safetensors"
            save_tensors(path, self.state.learnable.shard())
        if self._is_first:
            summary = {
                "engine": self.engine.name,
                "exact": self.engine.is_exact(self.state.config),
                "ranks": self.state.cluster.world,
                "metric": metric,
                "accuracy": accuracy,
                "best_epoch": self._progress.best_epoch,
                "peak_rss_mib": memory,
                "epochs": self._epochs,
            }
            write_text(self._run_dir / SUMMARY_FILE, json.dumps(summary, indent=1))
            console.say(f"results in {self._run_dir}")

    def _resume_or_start(self) -> None:
        state = self.state
        if state.config.train.resume:
            self._selection.progress = load_checkpoint(
                self._run_dir / CHECKPOINT_FILE,
                self._identity,
                state.packed.module,
                state.optimizer,
            )
            self.engine.restore_decisions(self._progress.decisions)
            if self._learnable is not None:
                with_kept = self._progress.best_epoch is not None
                self._learnable.load(self._progress.step, with_kept)
            state.log.event("resumed", step=self._progress.step)
        elif self._is_first:
            refuse_finished(self._run_dir)
            shutil.rmtree(self._run_dir / GRADIENTS_FOLDER, ignore_errors=True)
        if self._learnable is not None and not state.config.train.resume:
            # The checkpoint of an unfinished run, too, will be replaced.
            self._learnable.forget_all()
        if self._is_first:
            self._epochs = keep_epochs_before(self._run_dir, self._progress.epoch)

    def _checkpoint_if_due(self) -> None:
        every = self.state.config.train.checkpoint_every
        unfinished = self._progress.iteration < self.schedule.iterations
        if every and unfinished and self._progress.step % every == 0:
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        state = self.state
        self._progress.decisions = self.engine.decision_state()
        self.engine.complete(f"after iteration {self._progress.step}", moments=True)
        if self._learnable is not None:
            self._learnable.save(self._progress.step, self._progress.best_epoch is not None)
        if self._is_first:
            save_checkpoint(
                self._run_dir / CHECKPOINT_FILE,
                self._identity,
                state.packed.module,
                state.optimizer,
                self._progress,
            )

    def _record_gradient(self, batch: GlobalBatch, packed: PackedModel) -> None:
        """Write parameters and gradient of an iteration that was asked for."""
        if not self.engine.records:
            return
        learnable = self.state.learnable
        tables, sums = learnable.collect() if learnable is not None else ({}, {})
        if not self._is_first:
            return
        folder = self._run_dir / GRADIENTS_FOLDER
        tensors = {f"model.{n}": p.detach() for n, p in packed.module.named_parameters()}
        tensors |= {f"gradient.{n}": g for n, g in packed.named_gradients().items()}
        tensors |= {f"model.{n}": table for n, table in tables.items()}
        tensors |= {f"gradient.{n}": total for n, total in sums.items()}
        facts = {"epoch": batch.epoch, "iteration": batch.iteration, "loss": float(packed.loss)}
        save_tensors(folder / f"step-{self._progress.step}.safetensors", tensors, facts)

    def _introduce(self, console: RunConsole) -> None:
        state = self.state
        console.say(
            f"engine {self.engine.name}: {state.cluster.world} ranks on {state.cluster.servers} "
            f"servers, {self.schedule.iterations} iterations an epoch, model "
            f"{state.config.model.name} with {state.packed.parameters.numel()} parameters, "
            f"{state.config.train.dtype} on {state.cluster.device}"
        )
