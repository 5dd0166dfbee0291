"""The training loop of one rank, for one model or for several that are trained at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from hopper.engines import TrainStep
from hopper.engines.unused import describe_unused
from hopper.errors import NonFiniteError, RequestError
from hopper.features.wire_error import measure_wire_error, tell_wire_error
from hopper.files.whole_files import remove_unfinished
from hopper.graph.columns import tell_wide_columns
from hopper.micrograph.route import RootSchedule
from hopper.partition.stored_forms import describe_rounded_tables
from hopper.train.callbacks import Running
from hopper.train.checkpoint import RunCheckpoints
from hopper.train.engine_pipeline import EnginePipeline, engine_stages
from hopper.train.evaluate import Evaluator
from hopper.train.meter import EpochMeter, peak_rss_mib
from hopper.train.observers import Event, GradientRecorder, Observers
from hopper.train.results import SUMMARY_FILE, EpochRecord, best_first, finite_mean
from hopper.train.run_files import RunFiles
from hopper.train.run_lock import identify
from hopper.train.trained_model import TrainedModel
from hopper.train.warm_start import save_learned_rows

Models = dict[int, TrainedModel]
"""Models by number."""


class Trainer:
    """Runs a configuration's epochs on one rank.

    A model that runs out of patience stops, and the others go on. Rank 0 writes the epochs' lines,
    the best models, checkpoints and summaries into ``run_dir``. All else that follows the run is an
    observer. ``running`` is how far this process has trained.
    """

    def __init__(
        self,
        engine: TrainStep[Any, Any],
        schedule: RootSchedule,
        evaluator: Evaluator,
        run_dir: Path,
        identity: dict[str, Any],
        observers: Observers,
    ) -> None:
        self.engine, self.schedule = engine, schedule
        self.models = [
            TrainedModel(evaluator, state, run_dir / state.name, engine.models.complete)
            for state in engine.models
        ]
        self._state = state = engine.state
        self._config, self._cluster = state.config.train, state.cluster
        self.running = Running(
            model=state.packed.module,
            config=state.config,
            rank=state.cluster.rank,
            ranks=state.cluster.world,
            iterations=schedule.iterations,
            batch=schedule.count(0, 1),
        )
        self._stages = engine_stages(engine, schedule.batch)
        self._run_dir = run_dir
        self._folder: tuple[int, int] | None = None
        self._objective, self._baseline_text = evaluator.objective, evaluator.baseline_text
        self._checkpoints = RunCheckpoints(engine, self.models, run_dir, identity)
        self._files = RunFiles(engine, self.models, run_dir, evaluator.objective)
        self._meter = EpochMeter(state, self.running)
        self._observers, self._say = observers, observers.say
        # Gradients are recorded before any callback changes them.
        observers.add(GradientRecorder(engine, run_dir), first=True)
        engine.models.on_gradient.append(lambda *_: self._tell("gradient"))
        self._gradient_norms: dict[int, list[float]] = {}

    def run(self, before_summary: Callable[[], None] = lambda: None) -> None:
        """Train to the end. ``before_summary`` is called on every rank after training."""
        self._resume_or_start()
        self._introduce()
        self._tell("start")
        if not self._unfinished_models():
            # A resumed run may have nothing left to train: say why.
            self._say_ended(dict(enumerate(self.models)))
        while training := self._unfinished_models():
            self._train_epochs(training)
        self._checkpoints.finish()
        self._conclude(before_summary)

    def _resume_or_start(self) -> None:
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self._folder = identify(self._run_dir)
        if self._cluster.rank == 0:
            remove_unfinished(self._run_dir)
        if self._config.resume:
            self._checkpoints.load()
            self.running.resumed_step = self.models[0].progress.step
        else:
            self._files.start()
            # This run will also replace the checkpoints of an unfinished run.
            self._checkpoints.forget()
        self._files.go_on()
        self._go_to(self._unfinished_models() or dict(enumerate(self.models)))

    def _introduce(self) -> None:
        """Print what is trained, how and where."""
        run, state, cluster = self.running, self._state, self._cluster
        engine = f"engine {self.engine.name}:"
        model = f" model {run.config.model.name} with {state.packed.parameters.numel()} parameters,"
        if state.name:
            engine = f"engine {self.engine.name}, independent replicas: {len(self.models)} trials,"
            model = ""
        self._say(
            f"{engine} {run.ranks} ranks on {cluster.servers} servers, {run.iterations} iterations "
            f"an epoch,{model} {self._config.dtype} on {cluster.device}"
        )
        wire = run.config.cluster.feature_wire
        errors = self._files.wire_error = measure_wire_error(state.rows, cluster, wire)
        lines = [*describe_rounded_tables(state.request.schema), *tell_wire_error(errors, wire)]
        for line in [*lines, *describe_unused(state.request)]:
            self._say(line)
        if wide := tell_wide_columns(state.request.columns):
            self._say(wide)
        if run.resumed_step:
            self._say(
                f"resumed after {run.resumed_step} iterations: goes on at epoch {run.epoch}, "
                f"iteration {run.iteration}"
            )

    def _train_epochs(self, training: Models) -> None:
        """Train all epochs that are left, or the next one, if its end decides which models the one
        after it plans for."""
        progress = next(iter(training.values())).progress
        epochs = progress.epoch + 1 if self.engine.models.stop_apart else self._config.epochs
        start, iterations = (progress.epoch, progress.iteration), self.running.iterations
        with EnginePipeline(self.engine, self._stages, iterations, epochs, start) as pipeline:
            while (training := self._unfinished_models()) and not pipeline.is_over:
                record = self._train_epoch(training, pipeline)
                self._finish_epoch(training, record, self._validate(training, record))

    def _train_epoch(self, training: Models, pipeline: EnginePipeline) -> EpochRecord:
        run, engine = self.running, self.engine
        self._go_to(training)
        first, self._gradient_norms = run.iteration, {}
        engine.models.training = list(training)
        for model in self.models:
            model.state.packed.module.train()
        self._tell("begin_epoch")
        self._cluster.arrive(f"starting epoch {run.epoch}")
        self._meter.start(run.epoch)
        while run.iteration < run.iterations:
            self._train_iteration(training, pipeline)
            every = self._config.checkpoint_every
            if every and run.iteration < run.iterations and run.step % every == 0:
                self._require_folder()
                self._checkpoints.save()
        self._require_folder()
        # The loss of an iteration is the mean over models.
        losses = _mean_of_models([model.progress.losses for model in training.values()])
        record = self._meter.finish(losses)
        record.engine, record.ranks = engine.name, run.ranks
        record.roots = self.schedule.count(first, run.iterations)
        record.gradient_norms = _mean_of_models(list(self._gradient_norms.values()))
        record.left_out = sum(model.progress.left_out for model in training.values())
        self._state.log.flush()
        return record

    def _train_iteration(self, training: Models, pipeline: EnginePipeline) -> None:
        run = self.running
        self._state.log.set_context(epoch=run.epoch, iteration=run.iteration)
        with self._meter.iteration():
            report = pipeline.train_next()
        for number, reason in report.left_out.items():
            training[number].leave_out(reason)
        self._end_if_diverged()
        for number, norm in report.gradient_norms.items():
            self._gradient_norms.setdefault(number, []).append(norm)
        for number, model in training.items():
            model.end_iteration(report.losses[number])
        run.losses, run.sent_bytes = report.losses, self._cluster.traffic.total
        run.roots += self.schedule.count(run.iteration, run.iteration + 1)
        run.iteration += 1
        run.step += 1
        self._tell("iteration")

    def _validate(self, training: Models, record: EpochRecord) -> dict[int, float]:
        """Score the models if it is time; return their scores, and put the best into the record."""
        scores: dict[int, float] = {}
        training = {n: model for n, model in training.items() if not model.progress.diverged}
        if not training or not next(iter(training.values())).is_due(record.epoch):
            return scores
        with self._meter.evaluation(record):
            by_metric = {}
            for number, model in training.items():
                self.engine.models.hand_out(number)
                by_metric[number] = model.validate(record.epoch)
                scores[number] = by_metric[number][self._objective.metric]
            best = best_first(scores, self._objective.higher_is_better)[0]
            record.val, record.scores = scores[best], by_metric[best]
            if self._config.score_training:
                self.engine.models.hand_out(best)
                record.train = training[best].scores("train")[self._objective.metric]
        return scores

    def _finish_epoch(
        self, training: Models, record: EpochRecord, scores: dict[int, float]
    ) -> None:
        records = {
            number: model.end_epoch(scores.get(number), self._gradient_norms.get(number, []))
            for number, model in training.items()
        }
        self._files.add_epoch(record, records)
        is_stopped = self._tell_epoch(record)
        self._end_if_diverged()
        if is_stopped:
            self._say(f"a callback ended the training after epoch {record.epoch}")
            for model in training.values():
                model.is_stopped = True
        self._say_ended(training)
        if self._config.checkpoint_every:
            self._checkpoints.save()

    def _tell_epoch(self, record: EpochRecord) -> bool:
        """Tell the observers of an epoch; return whether one on any rank ends the training."""
        where = f"callbacks after epoch {record.epoch}"
        has_callbacks = bool(self._config.callbacks or self._config.loggers)
        if has_callbacks:
            self.engine.models.complete(where)
        answers = self._observers.tell("epoch", self.running, asdict(record))
        stops = torch.tensor([int(any(answer is True for answer in answers))])
        if has_callbacks:
            self._cluster.all_reduce(stops, "control", where)
        return bool(stops)

    def _conclude(self, before_summary: Callable[[], None]) -> None:
        """Score the best models on the test split, and write the summaries."""
        tests, baselines = [], self.models[0].baselines()
        for number, model in enumerate(self.models):
            self.engine.models.hand_out(number)
            test = model.test()
            tests.append(test)
            if test.by_metric and not model.state.name:
                scores = ", ".join(
                    f"{name} {score:.4f} (baseline {baselines['test'][name]:.4f})"
                    for name, score in test.by_metric.items()
                )
                self._say(
                    f"test {scores}, best epoch {model.progress.best_epoch}; baseline: "
                    f"{self._baseline_text}"
                )
        self._end_if_diverged()
        before_summary()
        memory = peak_rss_mib(self._cluster)
        save_learned_rows(self._run_dir, self._cluster, self._state.learnable)
        self._files.conclude(tests, baselines, memory)
        if self._files.left_out:
            self._say(
                f"{self._files.left_out} updates were left out, since a loss or a gradient was not "
                "finite (docs/howto/divergence.md)"
            )
        self._say(f"results in {self._run_dir}")
        if self._cluster.rank == 0:
            self.running.summary = json.loads((self._run_dir / SUMMARY_FILE).read_text())
        self._tell("finish")

    def _unfinished_models(self) -> Models:
        return {number: model for number, model in enumerate(self.models) if not model.is_finished}

    def _go_to(self, training: Models) -> None:
        """Take the place of models, which are all at the same iteration."""
        run, progress = self.running, next(iter(training.values())).progress
        run.epoch, run.iteration, run.step = progress.epoch, progress.iteration, progress.step

    def _tell(self, event: Event) -> None:
        self._observers.tell(event, self.running)

    def _end_if_diverged(self) -> None:
        """End the run if no model of it can be trained further."""
        if not all(model.progress.diverged for model in self.models):
            return
        self._checkpoints.finish()
        reasons = [f"{m.state.name}: {m.progress.diverged}".removeprefix(": ") for m in self.models]
        good = self._checkpoints.good
        before = f"the last checkpoint from before is {good}"
        saved = before if good else "there is no checkpoint from before"
        raise NonFiniteError(
            f"train.on_nonfinite: {'; '.join(reasons)}: the run ends, and {saved}; try a lower "
            "train.learning_rate or train.clip_norm, or leave such updates out "
            '(train.on_nonfinite = "skip"); see docs/howto/divergence.md'
        )

    def _require_folder(self) -> None:
        """Refuse to go on without the run's folder: files would be made anew in its place."""
        if self._cluster.rank == 0 and identify(self._run_dir) != self._folder:
            raise RequestError(
                f"train.run_dir: {self._run_dir}: was moved or removed during the run; to go on "
                "from its newest checkpoint, put it back and set train.resume"
            )

    def _say_ended(self, models: Models) -> None:
        """Say which models ended early, and why."""
        for number, model in models.items():
            prefix = f"trial {number}: " if model.state.name else ""
            if model.progress.diverged:
                self._say(f"{prefix}{model.progress.diverged}: stopped; it ranks last")
            elif model.out_of_patience:
                patience = self._config.patience
                self._say(f"{prefix}no better score in {patience} epochs: stopped")


def _mean_of_models(values: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over models of each iteration's value, of those that are finite."""
    return [finite_mean(of_models) for of_models in zip(*values, strict=True)]
