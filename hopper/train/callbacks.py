"""Callbacks: called on every rank as a run goes on, for what no option covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hopper.config import Config
from hopper.engines import Engine
from hopper.micrograph.route import GlobalBatch
from hopper.migrate.packed_model import PackedModel
from hopper.plug_ins import PlugIn, find_plug_ins
from hopper.train.results import EpochRecord


@dataclass
class Running:
    """What a callback sees of a run.

    Attributes
    ----------
    model: with this rank's parameters, which are those of every rank but where an engine leaves
        some to one of them (``raf``, ``p3``); after an epoch every rank has all.
    rank, ranks: which this is, and how many there are.
    epoch, iteration: the present ones, or those that come next.
    """

    model: torch.nn.Module
    rank: int
    ranks: int
    epoch: int = 0
    iteration: int = 0


class Callback:
    """Derive from it, and define what is wanted. The class is called with the keyword ``run_dir``,
    the run's folder as a :class:`pathlib.Path`, and the options of the configuration.

    What it changes, it has to change alike on every rank. It keeps nothing for a resumption, and
    what it raises ends the run.
    """

    def start(self, run: Running) -> None:
        """Training begins, or goes on after a resumption."""

    def gradient(self, run: Running) -> None:
        """An iteration's gradients are added up over all ranks (``parameter.grad``), and the update
        is next; clipping is not done yet."""

    def epoch(self, run: Running, record: Mapping[str, Any]) -> bool | None:
        """An epoch is over, and scored if it was time; True ends the training on all ranks.

        Parameters
        ----------
        record: what stands in epochs.jsonl; see :class:`hopper.train.results.EpochRecord`.
        """
        return None

    def finish(self, run: Running) -> None:
        """Training is over; the model is the best one."""


class RunCallbacks:
    """A run's callbacks on one rank."""

    def __init__(self, callbacks: Sequence[Callback], engine: Engine) -> None:
        self._callbacks, self._engine = list(callbacks), engine
        state = engine.state
        cluster = state.cluster
        self._run = Running(state.packed.module, cluster.rank, cluster.world)
        if self._callbacks:
            engine.on_gradient.append(self._gradient)

    def start(self, epoch: int, iteration: int) -> None:
        """Training begins there."""
        self._run.epoch, self._run.iteration = epoch, iteration
        for each in self._callbacks:
            each.start(self._run)

    def epoch(self, record: EpochRecord) -> bool:
        """Tell of an epoch; whether any rank wants no other. Collective where there are any."""
        if not self._callbacks:
            return False
        where = f"callbacks after epoch {record.epoch}"
        self._engine.complete(where)
        self._run.epoch, self._run.iteration = record.epoch, record.iterations
        told = asdict(record)
        stops = [each.epoch(self._run, told) for each in self._callbacks]
        count = torch.tensor([int(any(each is True for each in stops))])
        self._engine.state.cluster.all_reduce(count, "control", where)
        return bool(count)

    def finish(self) -> None:
        """Training is over."""
        for each in self._callbacks:
            each.finish(self._run)

    def _gradient(self, batch: GlobalBatch, _packed: PackedModel) -> None:
        self._run.epoch, self._run.iteration = batch.epoch, batch.iteration
        for each in self._callbacks:
            each.gradient(self._run)


def check_callbacks(config: Config) -> None:
    """Find the callbacks that a configuration names, and compare their options with them.

    Raises
    ------
    ConfigError: one line that names the key, what was expected and what came.
    """
    _find_callbacks(config)


def make_callbacks(config: Config, engine: Engine) -> RunCallbacks:
    """The callbacks of a run on this rank.

    Raises
    ------
    ConfigError: as :func:`check_callbacks`; a constructor raised an error.
    """
    run_dir = Path(config.train.run_dir)
    return RunCallbacks([each.make(run_dir=run_dir) for each in _find_callbacks(config)], engine)


def _find_callbacks(config: Config) -> list[PlugIn[Callback]]:
    names, options = config.train.callbacks, config.train.callbacks_options
    return find_plug_ins("train.callbacks", names, Callback, {}, options, ["run_dir"], derives=True)
