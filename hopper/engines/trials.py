"""Different models trained at once over one partitioned graph (HopGNN's migration, put to use).

Every trial has its own initialisation, dropout, shape, optimiser and learning rate, so nothing is
averaged, and a model must itself travel to the roots it trains: from its home around all ranks and
back home, where its own optimiser updates it. The features that a rank reads serve every visitor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hopper.config import Config
from hopper.engines.accumulate import Pass, overflowed
from hopper.engines.engine import Engine, Plan, StepReport, TrainState
from hopper.engines.request import Request
from hopper.engines.sampled_groups import rows_of
from hopper.engines.zero_hop import HOMED
from hopper.features import InputRows, PartitionedRows
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.micrograph.sample import dropout_key
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.dock import Dock
from hopper.migrate.passage import move_models
from hopper.migrate.schedule import Visit, round_trips, visits
from hopper.migrate.transport import Transport, hand_out

Passes = Mapping[int, Iterable[Pass]]
"""by trial; those of an empty group are none"""


@dataclass(frozen=True)
class TrialsPlan(Plan):
    """The groups that visitors train on a rank.

    Attributes
    ----------
    groups: by trial that is trained, a subgraph per pass; with shared sampling the same for all.
    """

    groups: dict[int, list[Subgraph]]

    @property
    def num_edges(self) -> int:
        """See :class:`hopper.engines.engine.Plan`."""
        distinct = {id(group): group for group in self.groups.values()}
        return sum(each.num_edges for each in chain(*distinct.values()))


class Trials(Engine[TrialsPlan, Passes]):
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
        self._transport = Transport(self.state.cluster, self.state.log, "model")

    @classmethod
    def plan_key(cls, config: Config) -> list[Any]:
        """See :class:`Engine`: one trial reads what the engine does."""
        return [HOMED]

    def plan(self, batch: GlobalBatch) -> TrialsPlan:
        """Samples this rank's roots: once for all trials, or for each by its own batch."""
        if self._shares:
            group = self._sample(0, batch)
            return TrialsPlan(batch, rows_of(group), dict.fromkeys(self.training, group))
        groups = {}
        for trial in self.training:
            own = self._schedules[trial].batch(batch.epoch, batch.iteration)
            with self.state.log.noting(model=trial):
                groups[trial] = self._sample(trial, own)
        return TrialsPlan(batch, rows_of([*chain(*groups.values())]), groups)

    def read(self, plan: TrialsPlan, rows: PartitionedRows) -> Passes:
        """Rows that are shared are held until the last trial has come. Others are read when their
        trial comes; with pre-gathering, those of other servers before, all at once."""
        trainer = self.state.trainer
        if not self._shares:
            source: InputRows = rows
            if self.state.config.hop.pregather:
                source = trainer.fetched_once(rows, [*chain(*plan.groups.values())])
            return {trial: self._read_later(trial, plan, source) for trial in plan.groups}
        group = next(iter(plan.groups.values()))
        source = trainer.fetched_once(rows, group) if len(group) > 1 else rows
        passes = [trainer.read(subgraph, source) for subgraph in group]
        return dict.fromkeys(plan.groups, passes)

    def compute(self, plan: TrialsPlan, inputs: Passes) -> None:
        """Every trial goes around the ranks and home."""
        state = self.state
        places = round_trips(len(self.models), state.cluster.world, self.training)
        *timeline, homecoming = visits(places, state.cluster.rank)
        for trial in timeline[0].models:
            self.models[trial].packed.clear()
            self._docks[trial].start([trial])
        for visit in timeline:
            if visit.step > 0:
                self._move(plan.batch, timeline[visit.step - 1], visit)
            for trial in visit.models:
                with state.log.noting(step=visit.step, model=trial):
                    self._train(trial, plan.batch, inputs[trial])
        self._move(plan.batch, timeline[-1], homecoming, homeward=True)

    def sees_epoch(self, epoch: int) -> bool:
        """A trial that runs out of patience is trained no more."""
        return not any(trial.config.train.patience for trial in self.models)

    def update(self, batch: GlobalBatch) -> StepReport:
        """Every trial is updated at home, where its loss is reported."""
        at_home = [trial for trial in self.training if self._is_home(trial)]
        return StepReport({trial: self._update(trial, batch) for trial in at_home})

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
        known = torch.tensor(list(losses.values()), dtype=torch.float64)
        known[[not self._is_home(trial) for trial in losses]] = 0.0
        self.state.cluster.all_reduce(known, "control", "adding up losses")
        return dict(zip(losses, known.tolist(), strict=True))

    @property
    def _shares(self) -> bool:
        return self.state.config.hop.share_sampling

    def _is_home(self, trial: int) -> bool:
        return self._home(trial) == self.state.cluster.rank

    def _home(self, trial: int) -> int:
        return trial % self.state.cluster.world

    def _hand_out(self, trial: int, *tensors: Tensor) -> None:
        for tensor in tensors:
            what = f"handing out trial {trial}"
            hand_out(self.state.cluster, tensor, self._home(trial), what)

    def _sample(self, trial: int, batch: GlobalBatch) -> list[Subgraph]:
        roots = batch.of_home(self.state.cluster.rank)
        return self.models[trial].trainer.sample(roots, batch.epoch, batch.iteration)

    def _read_later(self, trial: int, plan: TrialsPlan, rows: InputRows) -> Iterator[Pass]:
        # A group that was trained is let go of.
        for subgraph in plan.groups.pop(trial):
            yield self.models[trial].trainer.read(subgraph, rows)

    def _train(self, trial: int, batch: GlobalBatch, passes: Iterable[Pass]) -> None:
        state = self.models[trial]
        dropout = dropout_key(state.config.train.own_seed, batch.epoch, batch.iteration)
        with self._docks[trial].aboard(trial) as packed:
            for work in passes:
                # Batches of an iteration are equally large, whatever their seed.
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
