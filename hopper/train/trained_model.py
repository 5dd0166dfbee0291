"""A model of a run: how far it is trained, its validation scores, the best of its parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hopper.engines import TrainState
from hopper.migrate.transport import hand_out
from hopper.train.checkpoint import BEST_MODEL_FILE, Progress, load_model, save_model
from hopper.train.evaluate import Evaluator
from hopper.train.results import TrialRecord


class TrainedModel:
    """One model of a run: its place in it, and its best parameters, kept in a file by rank 0.

    Parameters
    ----------
    state: every rank has the parameters that it computes with when the model is scored.
    folder: of the model's files.
    complete: gives every rank all parameters, before they are saved; told the moment.

    Attributes
    ----------
    progress: the next iteration, and the scores so far; may be replaced by that of a checkpoint.
    is_stopped: whether somebody said that it is trained enough.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        state: TrainState,
        folder: Path,
        complete: Callable[[str], None],
    ) -> None:
        self.state = state
        self.folder = folder
        self.progress = Progress()
        self.is_stopped = False
        self._evaluator = evaluator
        self._complete = complete
        self._config = state.config.train
        self._file = folder / BEST_MODEL_FILE

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to train: all epochs are over, patience is, or it was stopped."""
        is_over = self.progress.epoch >= self._config.epochs
        return is_over or self.out_of_patience or self.is_stopped

    @property
    def out_of_patience(self) -> bool:
        """Whether too many epochs have passed without a better score."""
        patience = self._config.patience
        return patience > 0 and self.progress.epochs_without_gain >= patience

    def is_due(self, epoch: int) -> bool:
        """Whether the model is to be scored after an epoch."""
        every = self._config.evaluate_every
        return every > 0 and (epoch + 1) % every == 0 and self._evaluator.has_split("val")

    def end_iteration(self, loss: float) -> None:
        """Note an iteration's loss, which is NaN where another rank knows it."""
        self.progress.losses.append(loss)
        self.progress.iteration += 1
        self.progress.step += 1

    def end_epoch(self, score: float | None) -> TrialRecord:
        """Go on to the next epoch; returns what this one came to.

        Parameters
        ----------
        score: on validation, if the model was scored.
        """
        progress = self.progress
        losses = progress.losses
        mean = sum(losses) / len(losses)
        record = TrialRecord(progress.epoch, mean, len(losses), losses, score)
        progress.epoch += 1
        progress.iteration, progress.losses = 0, []
        return record

    def scores(self, split: str) -> dict[str, float]:
        """The scores of a split by metric, with the parameters as they are now; collective."""
        return self._evaluator.scores(self.state.packed.module, split)

    def validate(self, epoch: int) -> dict[str, float]:
        """The validation scores after an epoch; the first selects the best model."""
        progress = self.progress
        scores = self.scores("val")
        score = scores[self._evaluator.objective.metric]
        if self._is_better(score):
            self._complete(f"after epoch {epoch}")
            progress.best_score, progress.best_epoch = score, epoch
            progress.best_scores = scores
            progress.epochs_without_gain = 0
            if self.state.cluster.rank == 0:
                save_model(self._file, self.state.packed.module, epoch=epoch, val=score)
            for table in self._evaluator.learnable:
                table.keep()
        else:
            progress.epochs_without_gain += self._config.evaluate_every
        return scores

    def test(self) -> dict[str, float]:
        """Go back to the best model, and score it on the test split; empty if it is not scored.

        Where no epoch was scored, the model is what it is now, and is written to the file.
        """
        if self.progress.best_epoch is None:
            self._complete("after the last epoch")
            if self.state.cluster.rank == 0:
                last = self.progress.epoch - 1
                save_model(self._file, self.state.packed.module, epoch=last, val=None)
        else:
            # Rank 0 wrote it before the last collective; on other machines the file may not
            # be visible, so rank 0's parameters are handed to everyone.
            if self.state.cluster.rank == 0:
                load_model(self._file, self.state.packed.module)
            hand_out(
                self.state.cluster, self.state.packed.parameters, 0, "handing out the best model"
            )
            for table in self._evaluator.learnable:
                table.go_back()
        if not self._config.evaluate_every or not self._evaluator.has_split("test"):
            return {}
        return self.scores("test")

    def baselines(self) -> dict[str, dict[str, float]]:
        """By split that is scored, what one answer for all nodes reaches; collective."""
        return self._evaluator.baselines() if self._config.evaluate_every else {}

    def _is_better(self, score: float) -> bool:
        best = self.progress.best_score
        if best is None:
            return True
        return score > best if self._evaluator.objective.higher_is_better else score < best
