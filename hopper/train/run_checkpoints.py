"""Checkpoints of a run: its models, and its learnable rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hopper.engines import TrainStep
from hopper.errors import RequestError
from hopper.ops import is_finite
from hopper.train.background_writer import BackgroundWriter
from hopper.train.checkpoint import (
    RANKS,
    Progress,
    find_differences,
    find_moves,
    load_training,
    save_training,
    training_states,
)
from hopper.train.checkpoint_copy import CheckpointCopy
from hopper.train.checkpoint_files import CheckpointFiles, warn
from hopper.train.learnable_checkpoints import LearnableCheckpoints
from hopper.train.tensor_file import read_facts
from hopper.train.trained_model import TrainedModel


class RunCheckpoints:
    """Saves and restores a run. Every rank must call every method.

    Rank 0 writes one file for all models. With several models, the tensors' names begin with the
    model's name, and the progress is a list. A checkpoint is copied in memory, and written while
    training goes on.

    Parameters
    ----------
    models: the engine's models, whose progress is saved and restored.
    identity: the facts that a checkpoint must agree with to be resumed (``run_identity``).

    Attributes
    ----------
    good: the newest checkpoint whose numbers are all finite; None if there is none.
    """

    def __init__(
        self,
        engine: TrainStep,
        models: Sequence[TrainedModel],
        run_dir: Path,
        identity: dict[str, Any],
    ) -> None:
        self._engine = engine
        self._models = models
        self._identity = identity
        self._files = CheckpointFiles(run_dir)
        self.good: Path | None = None
        self._writer = BackgroundWriter()
        state = engine.state
        train = state.config.train
        self._keep = train.keep_checkpoints
        self._copy = CheckpointCopy(train.checkpoint_copy)
        self._learnable = LearnableCheckpoints(
            self._files, state.cluster, state.learnable, identity, self._keep, self._copy
        )

    def load(self) -> None:
        """Restore all models and their progress from the newest checkpoint that is whole.

        Checkpoints that are not whole for every rank cause a warning. An exact run can continue on
        other ranks or servers, or under another engine: it stays the same except for rounding.

        Raises
        ------
        RequestError: there is no such checkpoint, or its run has another configuration (names the
            key).
        """
        step = self._find_whole()
        file = self._files.model(step)
        saved_identity = read_facts(file)["identity"]
        moves = find_moves(file, saved_identity, self._identity)
        saved = load_training(file, self._identity, self._tensors())
        self.good = file
        saved_progress = [saved] if isinstance(saved, dict) else saved
        for model, progress in zip(self._models, saved_progress, strict=True):
            model.progress = Progress(**progress)
        if moves:
            self._learnable.load_of(step, self._has_best, saved_identity[RANKS])
            if self._engine.state.cluster.rank == 0:
                warn(f"going on elsewhere, the same but for rounding: {'; '.join(moves)}")
        else:
            self._learnable.load(step, self._has_best)
        if self._engine.state.cluster.rank == 0:
            self._files.forget_models_after(step)
        self._engine.state.log.event("resumed", step=step)

    def save(self) -> None:
        """Copy the models as they are after the last iteration, and begin to write the copy.

        Raises
        ------
        OSError: the previous checkpoint could not be written.
        """
        with self._engine.state.log.stage("sync", operation="taking a checkpoint"):
            self._writer.wait()
            self._engine.models.complete(f"after iteration {self._step}", moments=True)
            step = self._step
            write_learnable = self._learnable.collect(step, self._has_best)
            write_models = self._collect(step)
            if all(is_finite(tensor) for tensor in self._tensors().values()):
                self.good = self._files.model(step)

            def write() -> None:
                self._files.folder.mkdir(parents=True, exist_ok=True)
                write_learnable()
                write_models()

            self._writer.begin(write)

    def finish(self) -> None:
        """Wait until the last checkpoint is written; raises the same errors as :meth:`save`."""
        self._writer.wait()

    def forget(self) -> None:
        """Remove the checkpoints of an unfinished run, which this run replaces."""
        self._learnable.forget_all()
        if self._engine.state.cluster.rank == 0:
            self._files.forget_models()

    def _collect(self, step: int) -> Callable[[], None]:
        """Copy the models; return a function that writes the copy and removes the oldest file."""
        if self._engine.state.cluster.rank:
            return lambda: None
        by_model = [asdict(model.progress) for model in self._models]
        progress = by_model if self._models[0].state.name else by_model[0]
        tensors = {name: tensor.to("cpu", copy=True) for name, tensor in self._tensors().items()}
        file = self._files.model(step)

        def write() -> None:
            save_training(file, self._identity, tensors, progress)
            self._copy.put(file)
            self._copy.remove(self._files.forget_models(self._keep))

        return write

    def _find_whole(self) -> int:
        """Return the step of the newest checkpoint that is whole for every rank.

        Raises
        ------
        RequestError: there is none; gives a reason.
        """
        cluster, reasons = self._engine.state.cluster, list[str]()
        steps = self._files.steps
        # Rank 0 wrote the files, and other machines may see them later. So its list decides.
        counts = cluster.all_gather(torch.tensor([len(steps)]), "control", "counting checkpoints")
        mine = torch.tensor((steps + [-1] * int(counts.max()))[: int(counts.max())])
        if not mine.numel():
            raise RequestError(f"{self._files.folder}: no checkpoint to resume from")
        by_rank = cluster.all_gather(mine, "control", "naming checkpoints")
        for step in by_rank[0].tolist():
            reason = self._why_not(step) if step >= 0 else ""
            failed = torch.tensor([int(bool(reason))])
            if not cluster.all_gather(failed, "control", "looking at a checkpoint").any():
                if step >= 0:
                    return int(step)
                continue
            if reason:
                reasons.append(reason)
                warn(f"rank {cluster.rank}: a checkpoint is passed over: {reason}")
        if reasons:
            raise RequestError(f"{self._files.folder}: no whole checkpoint: {reasons[-1]}")
        raise RequestError(f"{self._files.folder}: no checkpoint that every rank finds")

    def _why_not(self, step: int) -> str:
        """Return why this rank cannot continue from a step; "" if it can."""
        try:
            file = self._files.model(step)
            saved_identity = read_facts(file)["identity"]
            if find_differences(saved_identity, self._identity):
                self._learnable.check_of(step, saved_identity[RANKS])
            else:
                self._learnable.check(step)
        except RequestError as error:
            return str(error)
        return ""

    @property
    def _step(self) -> int:
        """Iterations of the whole run, of the model that was trained longest."""
        return max(model.progress.step for model in self._models)

    @property
    def _has_best(self) -> bool:
        return self._models[0].progress.best_epoch is not None

    def _tensors(self) -> dict[str, Tensor]:
        return training_states(self._engine.models)
