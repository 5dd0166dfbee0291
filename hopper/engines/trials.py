"""Different models trained at once over one partitioned graph (HopGNN's migration, put to use).

Every trial has its own initialisation, dropout, shape, optimiser and learning rate, so nothing is
averaged, and a model must itself travel to the roots it trains: from its home around all ranks and
back home, where its own optimiser updates it. The features that a rank reads serve every visitor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hopper.config import Config
from hopper.engines.accumulate import overflowed
from hopper.engines.engine import Engine, Plan, StepReport, TrainState
from hopper.engines.request import Request
from hopper.engines.sampled_groups import nodes_of
from hopper.engines.trial_groups import OwnGroups, SharedGroup, VisitedGroups
from hopper.engines.zero_hop import HOMED
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.micrograph.sample import dropout_key
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.dock import Dock
from hopper.migrate.passage import move_models
from hopper.migrate.schedule import Visit, round_trips, visits
from hopper.migrate.transport import Transport, hand_out


@dataclass(frozen=True)
class TrialsPlan(Plan):
    """The groups of the trials that visit a rank.

    Attributes
    ----------
    batches: by trial that is trained. subgraphs: by trial, those of its group here; with shared
        sampling all have the same.
    timeline: the visits, time step by time step, and the way home behind them.
    """

    batches: Mapping[int, GlobalBatch]
    subgraphs: Mapping[int, Sequence[Subgraph]]
    timeline: Sequence[Visit]


class Trials(Engine[TrialsPlan, VisitedGroups]):
    """The ``hop`` engine with independent replicas.

    Trial d is at home on rank d mod N, which holds its parameters and makes its updates. Elsewhere
    it lends its module to the visitor, and what its buffer and its optimiser hold means nothing.

    Parameters
    ----------
    request: the run's.
    trials: each with the configuration that trains it alone. With shared sampling all have the same
        trainer.
    schedules: by trial, the roots of a trial that samples for itself; not read with shared
        sampling.
    """

    name = "hop"

    def __init__(
        self, request: Request, trials: Sequence[TrainState], schedules: Sequence[RootSchedule]
    ) -> None:
        super().__init__(replace(trials[0], request=request))
        self.models = trials
        self.training = range(len(trials))
        self._schedules = schedules
        self._docks = {
            number: Dock(trial.packed, moves_parameters=True) for number, trial in enumerate(trials)
        }
        self._at_home: Sequence[int] = ()
        """the trials that came home in the iteration under way"""
        self._transport = Transport(self.state.cluster, self.state.log, "model")

    @classmethod
    def plan_key(cls, config: Config) -> list[Any]:
        """See :class:`Engine`: one trial reads what the engine does."""
        return [HOMED]

    def plan(self, batch: GlobalBatch) -> TrialsPlan:
        """See :class:`Engine`."""
        rank, log = self.state.cluster.rank, self.state.log
        batches = self._batches(batch)
        if self.state.config.hop.share_sampling:
            roots = batch.homed_at(rank)
            shared = self.state.trainer.sample(roots, batch.epoch, batch.iteration)
            subgraphs = dict.fromkeys(batches, shared)
            reads = nodes_of(shared)
        else:
            subgraphs = {}
            for trial, own in batches.items():
                with log.noting(model=trial):
                    trainer = self.models[trial].trainer
                    subgraphs[trial] = trainer.sample(own.homed_at(rank), own.epoch, own.iteration)
            reads = nodes_of([each for group in subgraphs.values() for each in group])
        places = round_trips(len(self.models), self.state.cluster.world, self.training)
        return TrialsPlan(batch, reads, batches, subgraphs, visits(places, rank))

    def read(self, plan: TrialsPlan) -> VisitedGroups:
        """See :class:`Engine`."""
        state = self.state
        if state.config.hop.share_sampling:
            return SharedGroup(state.trainer, state.rows, next(iter(plan.subgraphs.values())))
        trainers = {number: trial.trainer for number, trial in enumerate(self.models)}
        pregather = state.config.hop.pregather
        return OwnGroups(trainers, state.rows, plan.subgraphs, pregather=pregather)

    def compute(self, plan: TrialsPlan, inputs: VisitedGroups) -> None:
        """Every trial goes around the ranks, and home."""
        *timeline, homecoming = plan.timeline
        for trial in timeline[0].models:
            self.models[trial].packed.clear()
            self._docks[trial].start([trial])
        for visit in timeline:
            if visit.step > 0:
                self._move(plan.batch, timeline[visit.step - 1], visit)
            for trial in visit.models:
                with self.state.log.noting(step=visit.step, model=trial):
                    self._train(trial, plan.batches[trial], inputs)
        self._move(plan.batch, timeline[-1], homecoming, homeward=True)
        self._at_home = homecoming.models

    def update(self, batch: GlobalBatch) -> StepReport:
        """Update the trials that live with this rank, whose losses it reports."""
        return StepReport({trial: self._update(trial, batch) for trial in self._at_home})

    def hand_out(self, model: int) -> None:
        """A trial's parameters go from its home to all ranks."""
        self._hand_out(model, self.models[model].packed.parameters)

    def complete(self, where: str, *, moments: bool = False) -> None:
        """For a checkpoint every trial is handed out, with its optimiser's state; a trial that is
        saved by itself was handed out before."""
        if moments:
            for trial, state in enumerate(self.models):
                self._hand_out(trial, state.packed.parameters, *state.optimizer.state().values())

    def spread_losses(self, losses: Mapping[int, list[float]]) -> Mapping[int, list[float]]:
        """A trial's losses are those that its home knows."""
        cluster = self.state.cluster
        known = torch.tensor(list(losses.values()), dtype=torch.float64)
        known[[self._home(trial) != cluster.rank for trial in losses]] = 0.0
        cluster.all_reduce(known, "control", "adding up losses")
        return dict(zip(losses, known.tolist(), strict=True))

    def _home(self, trial: int) -> int:
        return trial % self.state.cluster.world

    def _hand_out(self, trial: int, *tensors: Tensor) -> None:
        for tensor in tensors:
            what = f"handing out trial {trial}"
            hand_out(self.state.cluster, tensor, self._home(trial), what)

    def _batches(self, batch: GlobalBatch) -> Mapping[int, GlobalBatch]:
        """By trial that is trained: the run's batch, or one of the trial's own."""
        if self.state.config.hop.share_sampling:
            return dict.fromkeys(self.training, batch)
        schedules = self._schedules
        return {each: schedules[each].batch(batch.epoch, batch.iteration) for each in self.training}

    def _train(self, trial: int, batch: GlobalBatch, groups: VisitedGroups) -> None:
        state = self.models[trial]
        dropout = dropout_key(state.config.train.own_seed, batch.epoch, batch.iteration)
        with self._docks[trial].aboard(trial) as packed:
            for work in groups.passes(trial):
                state.trainer.train(packed, work, batch.size, dropout)

    def _move(
        self, batch: GlobalBatch, before: Visit, now: Visit, *, homeward: bool = False
    ) -> None:
        moment = (batch.epoch, batch.iteration, now.step)
        with self.state.log.noting(step=now.step):
            move_models(self._transport, self._docks, moment, before, now, homeward=homeward)

    def _update(self, trial: int, batch: GlobalBatch) -> float:
        state = self.models[trial]
        with state.log.stage("compute", operation="update", model=trial):
            self._docks[trial].unload()
            if not state.trainer.unscale(state.packed):
                raise overflowed(f"trial {trial}")
            factor = state.optimizer.pace.factor_at(batch.epoch, batch.iteration)
            state.optimizer.step(state.config.train.clip_norm, factor=factor)
        return float(state.packed.loss)
