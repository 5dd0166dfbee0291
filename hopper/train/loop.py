"""The training loop of one rank, for one model or for several that are trained at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hopper.engines import TrainStep
from hopper.engines.unused import describe_unused
from hopper.errors import NonFiniteError, RequestError
from hopper.features.wire_error import measure_wire_error, tell_wire_error
from hopper.graph.columns import tell_wide_columns
from hopper.micrograph.route import RootSchedule
from hopper.partition.stored_forms import describe_rounded_tables
from hopper.pipeline import Pipeline, moments_left
from hopper.train.callbacks import make_callbacks
from hopper.train.checkpoint import Progress
from hopper.train.console import RunConsole
from hopper.train.evaluate import Evaluator
from hopper.train.learnable_checkpoints import save_learned_rows
from hopper.train.meter import EpochMeter
from hopper.train.recorded_gradients import GradientRecorder
from hopper.train.results import EpochRecord, finite_mean, peak_rss_mib
from hopper.train.run_checkpoints import RunCheckpoints
from hopper.train.run_files import RunFiles, best_first
from hopper.train.run_lock import identify
from hopper.train.run_progress import RunProgress
from hopper.train.trained_model import TrainedModel
from hopper.whole_files import remove_unfinished

Models = dict[int, TrainedModel]
"""Models by number."""


class Trainer:
    """Runs a configuration's epochs on one rank.

    A model that runs out of patience stops, and the others go on. Rank 0 writes these files into
    ``run_dir``: a line per epoch, the best models, checkpoints, recorded gradients and summaries.
    Every rank writes its own spans.

    Parameters
    ----------
    schedule: the roots of every iteration.
    identity: the facts that a checkpoint must agree with to be resumed (``run_identity``).

    Attributes
    ----------
    models: the engine's models, by number. All unfinished ones are at the same iteration.
    progress: how far this process has trained.
    """

    def __init__(
        self,
        engine: TrainStep,
        schedule: RootSchedule,
        evaluator: Evaluator,
        run_dir: Path,
        identity: dict[str, Any],
    ) -> None:
        self.engine = engine
        self.schedule = schedule
        self.models = [
            TrainedModel(evaluator, state, run_dir / state.name, engine.models.complete)
            for state in engine.models
        ]
        self.on_trained: Callable[[Callable[[str], None]], None] = lambda _say: None
        """Called on every rank after training, before the summary is written."""
        self.on_epoch: Callable[[EpochRecord], None] = lambda _record: None
        """Called with the record of every finished epoch."""
        self._run_dir = run_dir
        self._folder: tuple[int, int] | None = None
        self._objective = evaluator.objective
        self._baseline_text = evaluator.baseline_text
        self._checkpoints = RunCheckpoints(engine, self.models, run_dir, identity)
        self._files = RunFiles(engine, self.models, run_dir, evaluator.objective)
        self._recorder = GradientRecorder(engine, run_dir)
        self._callbacks = make_callbacks(engine.state.config, engine)
        state = engine.state
        self._config = state.config.train
        self.progress = RunProgress()
        self._meter = EpochMeter(
            state.cluster,
            state.rows,
            state.log,
            state.config.cluster.interface,
            state.learnable,
            self.progress,
        )
        self._gradient_norms: dict[int, list[float]] = {}

    def run(self) -> None:
        """Train to the end.

        It raises the same errors as :func:`hopper.train.rank.run_rank`.
        """
        self._run_dir.mkdir(parents=True, exist_ok=True)
        self._folder = identify(self._run_dir)
        self._resume_or_start()
        is_shown = self.engine.state.cluster.rank == 0
        with RunConsole(is_shown, self._objective.metric) as console:
            self._introduce(console)
            progress = _progress_of(dict(enumerate(self.models)))
            if self.progress.resumed_step:
                console.say(
                    f"resumed after {self.progress.resumed_step} iterations: goes on at epoch "
                    f"{progress.epoch}, iteration {progress.iteration}"
                )
            self._callbacks.start(progress.epoch, progress.iteration)
            if not self._unfinished_models():
                # A resumed run may have nothing left to train: say why.
                self._say_ended(dict(enumerate(self.models)), console)
            with self._make_pipeline() as pipeline:
                while training := self._unfinished_models():
                    self.engine.models.training = list(training)
                    record = self._train_epoch(training, pipeline, console)
                    with pipeline.resting():
                        scores = self._validate(training, record)
                    self._finish_epoch(training, record, scores, console)
            self._checkpoints.finish()
            self._conclude(console)

    def _unfinished_models(self) -> Models:
        return {number: model for number, model in enumerate(self.models) if not model.is_finished}

    def _make_pipeline(self) -> Pipeline:
        """Return a pipeline of all iterations that are left to train."""
        unfinished = self._unfinished_models()
        progress = _progress_of(unfinished or dict(enumerate(self.models)))
        epochs = self._config.epochs if unfinished else 0
        moments = moments_left(progress.epoch, progress.iteration, self.schedule.iterations, epochs)
        return Pipeline(self.engine, self.schedule, moments)

    def _train_epoch(
        self, training: Models, pipeline: Pipeline, console: RunConsole
    ) -> EpochRecord:
        engine, state, progress = self.engine, self.engine.state, _progress_of(training)
        schedule, self._gradient_norms = self.schedule, {}
        batch = schedule.count(0, 1)
        console.start_epoch(progress.epoch, progress.iteration, schedule.iterations, batch)
        state.cluster.arrive(f"starting epoch {progress.epoch}")
        for model in self.models:
            model.state.packed.module.train()
        self.progress.epoch, self.progress.iteration = progress.epoch, progress.iteration
        self._meter.start(progress.epoch)
        pipeline.start_epoch(progress.epoch)
        while progress.iteration < self.schedule.iterations:
            self._train_iteration(training, pipeline, progress)
            console.step(progress.losses[-1], state.cluster.traffic.total)
            self._checkpoint_if_due(progress)
        self._require_folder()
        # The loss of an iteration is the mean over models.
        losses = _mean_of_models([model.progress.losses for model in training.values()])
        record = self._meter.finish(losses)
        record.engine, record.ranks = engine.name, state.cluster.world
        first = record.iterations - record.measured_iterations
        record.roots = schedule.count(first, record.iterations)
        record.gradient_norms = _mean_of_models(list(self._gradient_norms.values()))
        record.left_out = sum(model.progress.left_out for model in training.values())
        state.log.flush()
        return record

    def _train_iteration(self, training: Models, pipeline: Pipeline, place: Progress) -> None:
        self.engine.state.log.within(epoch=place.epoch, iteration=place.iteration)
        self._recorder.start(place.step)
        with self._meter.iteration():
            report = pipeline.train_next()
        for number, reason in report.left_out.items():
            training[number].leave_out(reason)
        self._end_if_diverged()
        progress = self.progress
        progress.iteration = place.iteration + 1
        progress.roots += self.schedule.count(place.iteration, place.iteration + 1)
        progress.losses = report.losses
        for number, norm in report.gradient_norms.items():
            self._gradient_norms.setdefault(number, []).append(norm)
        for number, model in training.items():
            model.end_iteration(report.losses[number])

    def _end_if_diverged(self) -> None:
        """End the run if no model of it can be trained further.

        Raises
        ------
        NonFiniteError: says what was not finite, names the last checkpoint, and says what to do.
        """
        if not all(model.progress.diverged for model in self.models):
            return
        self._checkpoints.finish()
        reasons = [
            f"{model.state.name}: {model.progress.diverged}".removeprefix(": ")
            for model in self.models
        ]
        good = self._checkpoints.good
        saved = "there is no checkpoint from before"
        if good is not None:
            saved = f"the last checkpoint from before is {good}"
        raise NonFiniteError(
            f"train.on_nonfinite: {'; '.join(reasons)}: the run ends, and {saved}; try a lower "
            "train.learning_rate or train.clip_norm, or leave such updates out "
            '(train.on_nonfinite = "skip"); see docs/howto/divergence.md'
        )

    def _validate(self, training: Models, record: EpochRecord) -> dict[int, float]:
        """Score the trained models if it is time, and put the best scores into the record.

        Returns
        -------
        By model, its score; empty if it is not time.
        """
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
        self,
        training: Models,
        record: EpochRecord,
        scores: dict[int, float],
        console: RunConsole,
    ) -> None:
        console.end_epoch(record)
        records = {
            number: model.end_epoch(scores.get(number), self._gradient_norms.get(number, []))
            for number, model in training.items()
        }
        self._files.add_epoch(record, records)
        self.on_epoch(record)
        self._end_if_diverged()
        if self._callbacks.epoch(record):
            console.say(f"a callback ended the training after epoch {record.epoch}")
            for model in training.values():
                model.is_stopped = True
        self._say_ended(training, console)
        if self._config.checkpoint_every:
            self._checkpoints.save()

    def _say_ended(self, models: Models, console: RunConsole) -> None:
        """Say which models ended early, and why."""
        for number, model in models.items():
            prefix = f"trial {number}: " if model.state.name else ""
            if model.progress.diverged:
                console.say(f"{prefix}{model.progress.diverged}: stopped; it ranks last")
            elif model.out_of_patience:
                patience = self._config.patience
                console.say(f"{prefix}no better score in {patience} epochs: stopped")

    def _checkpoint_if_due(self, progress: Progress) -> None:
        every = self._config.checkpoint_every
        has_more = progress.iteration < self.schedule.iterations
        is_due = every > 0 and has_more and progress.step % every == 0
        if is_due:
            self._require_folder()
            self._checkpoints.save()

    def _require_folder(self) -> None:
        """Refuse to go on without the run's folder: files would be made anew in its place.

        Raises
        ------
        RequestError: names the folder.
        """
        if self.engine.state.cluster.rank == 0 and identify(self._run_dir) != self._folder:
            raise RequestError(
                f"train.run_dir: {self._run_dir}: was moved or removed during the run; to go on "
                "from its newest checkpoint, put it back and set train.resume"
            )

    def _resume_or_start(self) -> None:
        if self.engine.state.cluster.rank == 0:
            remove_unfinished(self._run_dir)
        if self._config.resume:
            self._checkpoints.load()
            self.progress.resumed_step = self.models[0].progress.step
        else:
            self._files.start()
            self._recorder.forget()
            # This run will also replace the checkpoints of an unfinished run.
            self._checkpoints.forget()
        self._files.go_on()

    def _conclude(self, console: RunConsole) -> None:
        """Score the best models on the test split, and write the summaries."""
        tests, baselines = [], self.models[0].baselines()
        for number, model in enumerate(self.models):
            self.engine.models.hand_out(number)
            test = model.test()
            tests.append(test)
            if test.by_metric and not model.state.name:
                scores = ", ".join(
                    f"{name} {score:.4f} ({baselines['test'][name]:.4f})"
                    for name, score in test.by_metric.items()
                )
                console.say(
                    f"test {scores}, best epoch {model.progress.best_epoch}; in brackets "
                    f"{self._baseline_text}"
                )
        self._end_if_diverged()
        self._callbacks.finish()
        self.on_trained(console.say)
        state = self.engine.state
        memory = peak_rss_mib(state.cluster)
        save_learned_rows(self._run_dir, state.cluster, state.learnable)
        self._files.conclude(tests, baselines, memory)
        if self._files.left_out:
            console.say(
                f"{self._files.left_out} updates were left out, since a loss or a gradient was not "
                "finite (docs/howto/divergence.md)"
            )
        console.say(f"results in {self._run_dir}")

    def _introduce(self, console: RunConsole) -> None:
        """Print what is trained, how and where."""
        state, count = self.engine.state, len(self.models)
        engine = f"engine {self.engine.name}:"
        model = f"model {state.config.model.name} with {state.packed.parameters.numel()} parameters"
        what = [f"{self.schedule.iterations} iterations an epoch", model]
        if state.name:
            engine = f"engine {self.engine.name}, independent replicas: {count} trials,"
            what.pop()
        where = f"{state.cluster.world} ranks on {state.cluster.servers} servers"
        how = f"{self._config.dtype} on {state.cluster.device}"
        console.say(", ".join([f"{engine} {where}", *what, how]))
        wire = state.config.cluster.feature_wire
        errors = self._files.wire_error = measure_wire_error(state.rows, state.cluster, wire)
        rounded = [*describe_rounded_tables(state.request.schema), *tell_wire_error(errors, wire)]
        wide = tell_wide_columns(state.request.columns)
        for line in [*rounded, *describe_unused(state.request), *([wide] if wide else [])]:
            console.say(line)


def _mean_of_models(values: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean over models of each iteration's value, of those that are finite."""
    return [finite_mean(of_models) for of_models in zip(*values, strict=True)]


def _progress_of(training: Models) -> Progress:
    """Return the progress of models that are all at the same iteration."""
    return next(iter(training.values())).progress
