"""Different models trained at once over one partitioned graph (HopGNN's migration, put to use).

Every trial has its own initialisation, dropout, shape, optimiser and learning rate, so nothing is
averaged, and a model must itself travel to the roots it trains: from its home around all ranks and
back home, where its own optimiser updates it. The features that a rank reads serve every visitor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.engines.accumulate import GroupTrainer, overflowed
from hopper.engines.optimizer import Optimizer
from hopper.engines.trial_groups import OwnGroups, SharedGroup, VisitedGroups
from hopper.features import PartitionedRows
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.micrograph.sample import dropout_key
from hopper.migrate.dock import Dock
from hopper.migrate.packed_model import PackedModel
from hopper.migrate.passage import move_models
from hopper.migrate.schedule import Visit, round_trips, visits
from hopper.migrate.transport import Transport
from hopper.run_log import RunLog


@dataclass
class Trial:
    """One model, as one rank has it.

    Attributes
    ----------
    home: the rank that holds its parameters and makes its updates; elsewhere ``packed`` lends its
        module to the visitor, and what its buffer and the optimiser hold means nothing.
    config: the configuration that trains it alone.
    """

    index: int
    home: int
    config: Config
    packed: PackedModel
    optimizer: Optimizer

    @cached_property
    def dock(self) -> Dock:
        """Where the model stands while it is on this rank."""
        return Dock(self.packed, moves_parameters=True)


@dataclass
class TrialsState:
    """What one rank trains, and with what.

    Attributes
    ----------
    trials: all of them, in order.
    trainers, schedules: by trial; with shared sampling the same for all.
    """

    config: Config
    cluster: Cluster
    log: RunLog
    rows: PartitionedRows
    trials: Sequence[Trial]
    trainers: Sequence[GroupTrainer]
    schedules: Sequence[RootSchedule]

    @property
    def iterations(self) -> int:
        """Iterations of an epoch, the same for all trials."""
        return self.schedules[0].iterations


class Trials:
    """The ``hop`` engine with independent replicas."""

    name: ClassVar[str] = "hop"
    exact: ClassVar[bool] = True

    def __init__(self, state: TrialsState) -> None:
        self.state = state
        self._docks = {trial.index: trial.dock for trial in state.trials}
        self._transport = Transport(state.cluster, state.log, "model")

    def train_step(self, epoch: int, iteration: int, active: Sequence[int]) -> dict[int, float]:
        """Train an iteration of some trials, and update those that are at home on this rank.

        Parameters
        ----------
        active: the trials, the same on every rank.

        Returns
        -------
        By trial at home here: the sum of root losses divided by the size of the mini-batch.

        Raises
        ------
        ClusterError: a rank or server was lost, or a deadline passed.
        """
        state = self.state
        places = round_trips(len(state.trials), state.cluster.world, active)
        *timeline, homecoming = visits(places, state.cluster.rank)
        batches = self._batches(epoch, iteration, active)
        groups = self._groups(batches)
        for model in timeline[0].models:
            state.trials[model].packed.clear()
            self._docks[model].start([model])
        for visit in timeline:
            if visit.step > 0:
                self._move(epoch, iteration, timeline[visit.step - 1], visit)
            for model in visit.models:
                with state.log.noting(step=visit.step, model=model):
                    self._train(model, batches[model], groups)
        self._move(epoch, iteration, timeline[-1], homecoming, homeward=True)
        return {
            model: self._update(state.trials[model], epoch, iteration)
            for model in homecoming.models
        }

    def _batches(
        self, epoch: int, iteration: int, active: Sequence[int]
    ) -> Mapping[int, GlobalBatch]:
        schedules = self.state.schedules
        if self.state.config.hop.share_sampling:
            return dict.fromkeys(active, schedules[0].batch(epoch, iteration))
        return {trial: schedules[trial].batch(epoch, iteration) for trial in active}

    def _groups(self, batches: Mapping[int, GlobalBatch]) -> VisitedGroups:
        state, rank = self.state, self.state.cluster.rank
        if state.config.hop.share_sampling:
            batch = next(iter(batches.values()))
            return SharedGroup(state.trainers[0], state.rows, batch, rank)
        trainers = dict(enumerate(state.trainers))
        pregather = state.config.hop.pregather
        return OwnGroups(trainers, state.rows, batches, rank, state.log, pregather)

    def _train(self, model: int, batch: GlobalBatch, groups: VisitedGroups) -> None:
        state = self.state
        dropout = dropout_key(
            state.trials[model].config.train.own_seed, batch.epoch, batch.iteration
        )
        with self._docks[model].aboard(model) as packed:
            for work in groups.passes(model):
                state.trainers[model].train(packed, work, batch.size, dropout)

    def _move(
        self, epoch: int, iteration: int, before: Visit, now: Visit, homeward: bool = False
    ) -> None:
        moment = (epoch, iteration, now.step)
        with self.state.log.noting(step=now.step):
            move_models(self._transport, self._docks, moment, before, now, homeward=homeward)

    def _update(self, trial: Trial, epoch: int, iteration: int) -> float:
        with self.state.log.stage("compute", operation="update", model=trial.index):
            trial.dock.unload()
            if not self.state.trainers[trial.index].unscale(trial.packed):
                raise overflowed(f"trial {trial.index}")
            factor = trial.optimizer.pace.factor_at(epoch, iteration)
            trial.optimizer.step(trial.config.train.clip_norm, factor=factor)
        return float(trial.packed.loss)
