"""Checkpoints of a run: of all its models, its learnable rows and its engine's decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from hopper.engines import Engine
from hopper.train.checkpoint import (
    CHECKPOINT_FILE,
    Progress,
    load_training,
    save_training,
    training_state,
)
from hopper.train.learnable_checkpoints import LearnableCheckpoints
from hopper.train.trained_model import TrainedModel


class RunCheckpoints:
    """Saves what a run goes on from, and restores it; every rank calls every method.

    Rank 0 writes one file for all models. A lone model's tensors and progress stand in it as they
    are; of several models, names stand before those of the tensors, and progress is a list.

    Parameters
    ----------
    models: those of the engine; their progress is saved and replaced.
    identity: what a checkpoint must agree with to be resumed (``run_identity``).
    """

    def __init__(
        self,
        engine: Engine,
        models: Sequence[TrainedModel],
        run_dir: Path,
        identity: dict[str, Any],
    ) -> None:
        self._engine = engine
        self._models = models
        self._file = run_dir / CHECKPOINT_FILE
        self._identity = identity
        state = engine.state
        self._learnable = LearnableCheckpoints(run_dir, state.cluster, state.learnable, identity)

    def load(self) -> None:
        """Restore the models, and where each of them goes on.

        Raises
        ------
        RequestError: there is no whole checkpoint, or it is of a run with another configuration
            (names the key).
        """
        saved = load_training(self._file, self._identity, self._tensors())
        places = [saved] if isinstance(saved, dict) else saved
        for model, place in zip(self._models, places, strict=True):
            model.progress = Progress(**place)
        self._engine.restore_decisions(self._models[0].progress.decisions)
        self._learnable.load(self._step, self._has_best)
        self._engine.state.log.event("resumed", step=self._step)

    def save(self) -> None:
        """Write the models as they are after the last iteration."""
        decisions = self._engine.decision_state()
        for model in self._models:
            model.progress.decisions = decisions
        self._engine.complete(f"after iteration {self._step}", moments=True)
        self._learnable.save(self._step, self._has_best)
        if self._engine.state.cluster.rank == 0:
            places = [asdict(model.progress) for model in self._models]
            progress = places if self._models[0].state.name else places[0]
            save_training(self._file, self._identity, self._tensors(), progress)

    def forget(self) -> None:
        """Remove what an unfinished run has left of learnable rows; the file will be replaced."""
        self._learnable.forget_all()

    @property
    def _step(self) -> int:
        """Iterations over the whole run, of the model that was trained longest."""
        return max(model.progress.step for model in self._models)

    @property
    def _has_best(self) -> bool:
        return self._models[0].progress.best_epoch is not None

    def _tensors(self) -> dict[str, Tensor]:
        return {
            f"{model.name}.{name}" if model.name else name: tensor
            for model in self._engine.models
            for name, tensor in training_state(model.packed.module, model.optimizer).items()
        }
