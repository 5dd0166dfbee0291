"""A model of a run: its progress, its validation scores and its best parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hopper.engines import TrainState
from hopper.migrate.migration import broadcast
from hopper.ops import is_finite
from hopper.train.evaluate import Evaluator, Scored
from hopper.train.results import TrialRecord, best_first, finite_mean
from hopper.train.tensor_file import BEST_MODEL_FILE, fill_tensors, save_tensors


@dataclass
class Progress:
    """The progress of a model: its next iteration, and its losses and scores so far."""

    epoch: int = 0
    iteration: int = 0
    step: int = 0
    """Iterations of the whole run so far."""
    losses: list[float] = field(default_factory=list)
    """Losses of the epoch so far."""
    best_score: float | None = None
    best_epoch: int | None = None
    best_scores: dict[str, float] = field(default_factory=dict)
    """Scores of the best epoch, by metric."""
    epochs_without_gain: int = 0
    left_out: int = 0
    """Iterations of the epoch so far whose update was left out."""
    diverged: str = ""
    """Why the model is trained no further: what was not finite, and where."""


class TrainedModel:
    """One model of a run. Rank 0 keeps its best parameters in a file of ``folder``, which
    ``complete`` gives to every rank before, called with a text for errors."""

    def __init__(
        self,
        evaluator: Evaluator,
        state: TrainState,
        folder: Path,
        complete: Callable[[str], None],
    ) -> None:
        self.state, self.folder = state, folder
        self.progress = Progress()
        self.is_stopped = False
        self._evaluator, self._complete = evaluator, complete
        self._config = state.config.train
        self._file = folder / BEST_MODEL_FILE

    @property
    def is_finished(self) -> bool:
        """Whether training is over: after the last epoch, out of patience, stopped by a callback,
        or diverged."""
        is_over = self.progress.epoch >= self._config.epochs or bool(self.progress.diverged)
        return is_over or self.out_of_patience or self.is_stopped

    @property
    def out_of_patience(self) -> bool:
        """Whether too many epochs have passed without a better score."""
        return 0 < self._config.patience <= self.progress.epochs_without_gain

    def is_due(self, epoch: int) -> bool:
        """Return whether the model must be scored after an epoch."""
        every = self._config.evaluate_every
        return every > 0 and (epoch + 1) % every == 0 and self._evaluator.has_split("val")

    def leave_out(self, reason: str) -> None:
        """Count an iteration whose update was left out, and end the training if that was asked for
        and there is a reason: something was not finite, whatever the loss scale."""
        self.progress.left_out += 1
        if self._config.on_nonfinite == "stop":
            self.progress.diverged = self.progress.diverged or reason

    def end_iteration(self, loss: float) -> None:
        """Record an iteration's loss."""
        self.progress.losses.append(loss)
        self.progress.iteration += 1
        self.progress.step += 1

    def end_epoch(self, score: float | None, norms: list[float]) -> TrialRecord:
        """Go on to the next epoch, and return the record of this one, with its validation score and
        the norms of gradients, if there are any."""
        progress = self.progress
        record = TrialRecord(
            epoch=progress.epoch,
            loss=finite_mean(progress.losses),
            iterations=len(progress.losses),
            iteration_losses=progress.losses,
            val=score,
            left_out=progress.left_out,
            gradient_norms=norms,
        )
        progress.epoch += 1
        progress.iteration, progress.losses, progress.left_out = 0, [], 0
        return record

    def scores(self, split: str) -> dict[str, float]:
        """Score the present parameters on a split, by metric; every rank must call it."""
        return self._evaluator.score(self.state.packed.module, split).by_metric

    def validate(self, epoch: int) -> dict[str, float]:
        """Score the model after an epoch, by metric, and save it if it is the best so far."""
        progress = self.progress
        scores = self.scores("val")
        score = scores[self._evaluator.objective.metric]
        higher = self._evaluator.objective.higher_is_better
        if best_first({0: progress.best_score, 1: score}, higher)[0] == 1:
            self._complete(f"after epoch {epoch}")
            progress.best_score, progress.best_epoch = score, epoch
            progress.best_scores, progress.epochs_without_gain = scores, 0
            self._save(epoch, score)
            for table in self._evaluator.learnable:
                table.keep()
        else:
            progress.epochs_without_gain += self._config.evaluate_every
        if self._evaluator.met_nan and self._config.on_nonfinite == "stop":
            progress.diverged = f"predictions of the validation split are nan (after epoch {epoch})"
        return scores

    def test(self) -> Scored:
        """Go back to the best model, and score it on the test split, if there is an evaluation. If
        no epoch had a score, the present model is saved as the best, unless it diverged."""
        progress, packed, cluster = self.progress, self.state.packed, self.state.cluster
        if progress.best_epoch is None:
            self._complete("after the last epoch")
            if not is_finite(packed.parameters):
                progress.diverged = "parameters are not finite after the last update"
            if progress.diverged:
                return Scored({}, {})
            self._save(progress.epoch - 1, None)
        else:
            # Other machines may not see the file, so rank 0 reads it and sends the parameters.
            if cluster.rank == 0:
                fill_tensors(packed.module.state_dict(), self._file)
            broadcast(cluster, packed.parameters, 0, "handing out the best model")
            for table in self._evaluator.learnable:
                table.go_back()
        if not self._config.evaluate_every or not self._evaluator.has_split("test"):
            return Scored({}, {})
        return self._evaluator.score(packed.module, "test", by_class=True)

    def _save(self, epoch: int, score: float | None) -> None:
        if self.state.cluster.rank == 0:
            tensors = self.state.packed.module.state_dict()
            save_tensors(self._file, tensors, {"epoch": epoch, "val": score})

    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the scores of a single answer for all nodes, by split; every rank must call it."""
        return self._evaluator.baselines() if self._config.evaluate_every else {}
