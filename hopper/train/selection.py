"""Keeping the best model of a run by its validation score."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from hopper.cluster import Cluster
from hopper.config import Train
from hopper.migrate.packed_model import PackedModel
from hopper.train.checkpoint import BEST_MODEL_FILE, Progress, load_model, save_model
from hopper.train.evaluate import Evaluator


class ModelSelection:
    """Scores one model after epochs; rank 0 writes the best one's parameters to a file.

    Parameters
    ----------
    packed: the model; every rank has the parameters that it computes with when a method is called.
    complete: gives every rank all of them, before they are saved; told the moment.
    progress: where scores are noted; may be replaced by that of a checkpoint.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        cluster: Cluster,
        packed: PackedModel,
        config: Train,
        folder: Path,
        complete: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._evaluator = evaluator
        self._cluster = cluster
        self._packed = packed
        self._complete = complete
        self._config = config
        self._file = folder / BEST_MODEL_FILE
        self.progress = Progress()

    @property
    def out_of_patience(self) -> bool:
        """Whether too many epochs have passed without a better score."""
        patience = self._config.patience
        return patience > 0 and self.progress.epochs_without_gain >= patience

    def is_due(self, epoch: int) -> bool:
        """Whether the model is to be scored after an epoch."""
        every = self._config.evaluate_every
        return every > 0 and (epoch + 1) % every == 0 and self._evaluator.has_split("val")

    def validate(self, epoch: int) -> float:
        """The validation score after an epoch."""
        progress = self.progress
        score = self._evaluator.score(self._packed.module, "val")
        if self._is_better(score):
            self._complete(f"after epoch {epoch}")
            progress.best_score, progress.best_epoch = score, epoch
            progress.epochs_without_gain = 0
            if self._cluster.rank == 0:
                save_model(self._file, self._packed.module, epoch=epoch, val=score)
            if self._evaluator.learnable is not None:
                self._evaluator.learnable.keep()
        else:
            progress.epochs_without_gain += self._config.evaluate_every
        return score

    def test(self) -> float | None:
        """Go back to the best model, and score it on the test split; None if it is not scored."""
        if self.progress.best_epoch is not None:
            # Rank 0 wrote it before the last collective; on other machines the file may not
            # be visible, so rank 0's parameters are handed to everyone.
            if self._cluster.rank == 0:
                load_model(self._file, self._packed.module)
            hand_out(self._cluster, self._packed.parameters, 0, "handing out the best model")
            if self._evaluator.learnable is not None:
                self._evaluator.learnable.go_back()
        if not self._config.evaluate_every or not self._evaluator.has_split("test"):
            return None
        return self._evaluator.score(self._packed.module, "test")

    def _is_better(self, score: float) -> bool:
        best = self.progress.best_score
        if best is None:
            return True
        return score > best if self._evaluator.objective.higher_is_better else score < best


def hand_out(cluster: Cluster, tensor: Tensor, owner: int, operation: str) -> None:
    """Give every rank what one rank holds in a tensor; in place."""
    if cluster.rank != owner:
        tensor.zero_()
    cluster.all_reduce(tensor, "model", operation)
