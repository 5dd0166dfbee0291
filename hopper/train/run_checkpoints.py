"""Checkpoints of a run: of all its models, its learnable rows and its engine's decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hopper.engines import Engine
from hopper.errors import RequestError
from hopper.train.background_writer import BackgroundWriter
from hopper.train.checkpoint import (
    RANKS,
    Progress,
    differences,
    find_moves,
    load_training,
    save_training,
    training_state,
)
from hopper.train.checkpoint_copy import CheckpointCopy
from hopper.train.checkpoint_files import CheckpointFiles, warn
from hopper.train.learnable_checkpoints import LearnableCheckpoints
from hopper.train.tensor_file import read_facts
from hopper.train.trained_model import TrainedModel


class RunCheckpoints:
    """Saves what a run goes on from, and restores it; every rank calls every method.

    Rank 0 writes one file for all models. A lone model's tensors and progress stand in it as they
    are; of several models, names stand before those of the tensors, and progress is a list. What is
    saved is copied, and written while training goes on.

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
        self._identity = identity
        self._files = CheckpointFiles(run_dir)
        self._writer = BackgroundWriter()
        state = engine.state
        train = state.config.train
        self._keep = train.keep_checkpoints
        self._copy = CheckpointCopy(train.checkpoint_copy)
        self._learnable = LearnableCheckpoints(
            self._files, state.cluster, state.learnable, identity, self._keep, self._copy
        )

    def load(self) -> None:
        """Restore the models, and where each of them goes on, from the newest checkpoint that every
        rank finds whole; those that are not are told.

        Under other ranks, servers or another engine an exact run goes on too, the same but for
        rounding; what its engine had decided is forgotten then.

        Raises
        ------
        RequestError: there is none, or it is of a run with another configuration (names the key).
        """
        step = self._find_whole()
        file = self._files.model(step)
        found = read_facts(file)["identity"]
        moves = find_moves(file, found, self._identity)
        saved = load_training(file, self._identity, self._tensors())
        places = [saved] if isinstance(saved, dict) else saved
        for model, place in zip(self._models, places, strict=True):
            model.progress = Progress(**place)
        if moves:
            self._learnable.load_of(step, self._has_best, found[RANKS])
            if self._engine.state.cluster.rank == 0:
                warn(f"going on elsewhere, the same but for rounding: {'; '.join(moves)}")
        else:
            self._engine.restore_decisions(self._models[0].progress.decisions)
            self._learnable.load(step, self._has_best)
        if self._engine.state.cluster.rank == 0:
            self._files.forget_models_after(step)
        self._engine.state.log.event("resumed", step=step)

    def save(self) -> None:
        """Take the models as they are after the last iteration, and begin to write them.

        Raises
        ------
        OSError: the checkpoint before could not be written.
        """
        with self._engine.state.log.stage("sync", operation="taking a checkpoint"):
            self._writer.wait()
            decisions = self._engine.decision_state()
            for model in self._models:
                model.progress.decisions = decisions
            self._engine.complete(f"after iteration {self._step}", moments=True)
            step = self._step
            write_learnable = self._learnable.collect(step, self._has_best)
            write_models = self._collect(step)

            def write() -> None:
                self._files.folder.mkdir(parents=True, exist_ok=True)
                write_learnable()
                write_models()

            self._writer.begin(write)

    def finish(self) -> None:
        """Wait until all that was begun is written; raises as :meth:`save`."""
        self._writer.wait()

    def forget(self) -> None:
        """Remove what an unfinished run has left, which will be replaced."""
        self._learnable.forget_all()
        if self._engine.state.cluster.rank == 0:
            self._files.forget_models()

    def _collect(self, step: int) -> Callable[[], None]:
        """What writes the models as they are, and removes the oldest file of them."""
        if self._engine.state.cluster.rank:
            return lambda: None
        places = [asdict(model.progress) for model in self._models]
        progress = places if self._models[0].state.name else places[0]
        tensors = {name: each.to("cpu", copy=True) for name, each in self._tensors().items()}
        file = self._files.model(step)

        def write() -> None:
            save_training(file, self._identity, tensors, progress)
            self._copy.put(file)
            self._copy.remove(self._files.forget_models(self._keep))

        return write

    def _find_whole(self) -> int:
        """The step of the newest checkpoint that is whole for every rank.

        Raises
        ------
        RequestError: there is none; says why not.
        """
        cluster, reasons = self._engine.state.cluster, list[str]()
        steps = self._files.steps
        # Rank 0 has written them; others may see its folder later.
        known = cluster.all_gather(torch.tensor([len(steps)]), "control", "counting checkpoints")
        mine = torch.tensor((steps + [-1] * int(known.max()))[: int(known.max())])
        if not mine.numel():
            raise RequestError(f"{self._files.folder}: no checkpoint to resume from")
        everyone = cluster.all_gather(mine, "control", "naming checkpoints")
        for step in everyone[0].tolist():
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
        """Why this rank cannot go on from a step; "" where it can."""
        try:
            file = self._files.model(step)
            found = read_facts(file)["identity"]
            if differences(found, self._identity):
                self._learnable.check_of(step, found[RANKS])
            else:
                self._learnable.check(step)
        except RequestError as error:
            return str(error)
        return ""

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
