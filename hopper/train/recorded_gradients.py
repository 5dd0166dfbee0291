"""Recording parameters and gradients of the iterations that ``train.record_gradients`` names."""

from __future__ import annotations

import shutil
from pathlib import Path

from hopper.engines import TrainStep
from hopper.micrograph.route import GlobalBatch
from hopper.migrate.flat_model import FlatModel
from hopper.train.tensor_file import save_tensors

GRADIENTS_FOLDER = "gradients"


class GradientRecorder:
    """Lets rank 0 write an engine's gradients into the run's folder."""

    def __init__(self, engine: TrainStep, run_dir: Path) -> None:
        self._engine = engine
        self._folder = run_dir / GRADIENTS_FOLDER
        self._step = 0
        engine.models.on_gradient.append(self._write)

    def forget(self) -> None:
        """Remove the records of an unfinished run."""
        if self._engine.state.cluster.rank == 0:
            shutil.rmtree(self._folder, ignore_errors=True)

    def start(self, step: int) -> None:
        """Begin the ``step``-th iteration of the run."""
        self._step = step

    def _write(self, batch: GlobalBatch, packed: FlatModel) -> None:
        state = self._engine.state
        if self._step not in state.config.train.record_gradients:
            return
        self._engine.models.complete(batch.where, gradients=True)
        learned = self._engine.sparse.fetched.collect()
        if state.cluster.rank != 0:
            return
        tensors = {f"model.{n}": p.detach() for n, p in packed.module.named_parameters()}
        tensors |= {f"gradient.{n}": g for n, g in packed.named_gradients().items()}
        tensors |= learned
        facts = {"epoch": batch.epoch, "iteration": batch.iteration, "loss": float(packed.loss)}
        save_tensors(self._folder / f"step-{self._step}.safetensors", tensors, facts)
