"""Callbacks: user code that every rank calls during a run, for what no option covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hopper.config import Config
from hopper.engines import TrainStep
from hopper.micrograph.route import GlobalBatch
from hopper.migrate.flat_model import FlatModel
from hopper.plug_ins import PlugIn, find_plug_ins
from hopper.train.results import EpochRecord


@dataclass
class Running:
    """A run as a callback sees it.

    Attributes
    ----------
    model: the model with this rank's parameters. All ranks have the same, except that ``raf`` and
        ``p3`` train some parameters on one rank only; after an epoch every rank has all of them.
    rank: this rank.
    ranks: the number of ranks.
    epoch, iteration: the present ones; between iterations, the next ones.
    """

    model: torch.nn.Module
    rank: int
    ranks: int
    epoch: int = 0
    iteration: int = 0


class Callback:
    """Base class of callbacks. Derive from it and define the methods that you need.

    The class is called with the keyword ``run_dir``, the run's folder as a :class:`pathlib.Path`,
    and the options of the configuration. A callback must make the same changes on every rank. Its
    state is not part of checkpoints. An error that it raises ends the run.
    """

    def start(self, run: Running) -> None:
        """Called when training begins, or goes on after a resumption."""

    def gradient(self, run: Running) -> None:
        """Called in every iteration before the update.

        ``parameter.grad`` is the sum over all ranks, before clipping.
        """

    def epoch(self, run: Running, record: Mapping[str, Any]) -> bool | None:
        """Called after every epoch, and after its evaluation if there is one.

        Parameters
        ----------
        record: the epoch's line in epochs.jsonl; see
            :class:`hopper.train.results.EpochRecord`.

        Returns
        -------
        True ends the training on all ranks.
        """
        return None

    def finish(self, run: Running) -> None:
        """Called after training. The model is the best one."""


class RunCallbacks:
    """A run's callbacks on one rank."""

    def __init__(self, callbacks: Sequence[Callback], engine: TrainStep) -> None:
        self._callbacks, self._engine = list(callbacks), engine
        state = engine.state
        cluster = state.cluster
        self._run = Running(state.packed.module, cluster.rank, cluster.world)
        if self._callbacks:
            engine.models.on_gradient.append(self._gradient)

    def start(self, epoch: int, iteration: int) -> None:
        """Call all callbacks' ``start``.

        Parameters
        ----------
        epoch, iteration: the first ones that will be trained.
        """
        self._run.epoch, self._run.iteration = epoch, iteration
        for callback in self._callbacks:
            callback.start(self._run)

    def epoch(self, record: EpochRecord) -> bool:
        """Call all callbacks' ``epoch``; with callbacks, every rank must call it.

        Returns
        -------
        Whether a callback on any rank ends the training.
        """
        if not self._callbacks:
            return False
        where = f"callbacks after epoch {record.epoch}"
        self._engine.models.complete(where)
        self._run.epoch, self._run.iteration = record.epoch, record.iterations
        line = asdict(record)
        answers = [callback.epoch(self._run, line) for callback in self._callbacks]
        stops = torch.tensor([int(any(answer is True for answer in answers))])
        self._engine.state.cluster.all_reduce(stops, "control", where)
        return bool(stops)

    def finish(self) -> None:
        """Call all callbacks' ``finish``."""
        for callback in self._callbacks:
            callback.finish(self._run)

    def _gradient(self, batch: GlobalBatch, _packed: FlatModel) -> None:
        self._run.epoch, self._run.iteration = batch.epoch, batch.iteration
        for callback in self._callbacks:
            callback.gradient(self._run)


def check_callbacks(config: Config) -> None:
    """Check that a configuration's callbacks exist and take the options that it gives them.

    Raises
    ------
    ConfigError: one line that names the key, what was expected and what came.
    """
    _find_callbacks(config)


def make_callbacks(config: Config, engine: TrainStep) -> RunCallbacks:
    """Make the callbacks of a run on this rank.

    Raises
    ------
    ConfigError: as :func:`check_callbacks` does, or a constructor raised an error.
    """
    run_dir = Path(config.train.run_dir)
    callbacks = [plug_in.make(run_dir=run_dir) for plug_in in _find_callbacks(config)]
    return RunCallbacks(callbacks, engine)


def _find_callbacks(config: Config) -> list[PlugIn[Callback]]:
    names, options = config.train.callbacks, config.train.callbacks_options
    return find_plug_ins("train.callbacks", names, Callback, {}, options, ["run_dir"], derives=True)
