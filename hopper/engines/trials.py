"""Different models, called trials, that are trained at once over one partitioned graph.

Every trial has its own initialisation, dropout, shape, optimiser and learning rate, so gradients
are not averaged. A model travels from its home around all ranks and back, where its optimiser
updates it (HopGNN's migration). The features that a rank reads serve every visiting model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from hopper.config import Config
from hopper.engines.accumulate import Pass
from hopper.engines.engine import Engine, Plan, StepReport, TrainState
from hopper.engines.non_finite import explain
from hopper.engines.request import Request
from hopper.engines.sampled_groups import list_reads
from hopper.engines.zero_hop import HOMED
from hopper.features import InputRows, PartitionedRows
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.micrograph.sample import dropout_key
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.migration import ReplicaBuffers, Transport, broadcast
from hopper.migrate.schedule import Visit, round_trips, visits

Passes = Mapping[int, Iterable[Pass]]
"""The passes of each trial; an empty group has none."""


@dataclass(frozen=True)
class TrialsPlan(Plan):
    """The groups that visiting models train on a rank.

    Attributes
    ----------
    groups: by trial, a subgraph for each pass. With shared sampling all trials have the same.
    """

    groups: dict[int, list[Subgraph]]

    @property
    def num_edges(self) -> int:
        """The number of edges that the groups hold, each shared group counted once."""
        distinct = {id(group): group for group in self.groups.values()}
        return sum(subgraph.num_edges for subgraph in chain(*distinct.values()))


class Trials(Engine[TrialsPlan, Passes]):
    """The ``hop`` engine with independent replicas.

    The home of trial d is rank d mod N, which holds its parameters and makes its updates. Other
    ranks keep a module for the visiting model; their buffers and optimisers of the trial have no
    meaning between visits.

    Parameters
    ----------
    request: the request of the run.
    trials: the state of each trial, with the configuration that trains it alone. With shared
        sampling all have the same trainer.
    schedules: by trial, the schedule of its batches. Shared sampling does not use them.
    """

    name = "hop"

    def __init__(
        self, request: Request, trials: Sequence[TrainState], schedules: Sequence[RootSchedule]
    ) -> None:
        super().__init__(replace(trials[0], request=request))
        self.models = trials
        self.training = range(len(trials))
        self._schedules = schedules
        self._buffers = {
            number: ReplicaBuffers(trial.packed, moves_parameters=True)
            for number, trial in enumerate(trials)
        }
        self._transport = Transport(self.state.cluster, self.state.log, "model")

    @classmethod
    def plan_key(cls, config: Config) -> list[Any]:
        """Return the key that all engines share whose ranks read for their own roots."""
        return [HOMED]

    def plan(self, batch: GlobalBatch) -> TrialsPlan:
        """Sample this rank's roots, once for all trials or for each trial by its own batch."""
        if self._shares:
            group = self._sample(0, batch)
            return TrialsPlan(batch, list_reads(group), dict.fromkeys(self.training, group))
        groups = {}
        for trial in self.training:
            trial_batch = self._schedules[trial].batch(batch.epoch, batch.iteration)
            with self.state.log.note_fields(model=trial):
                groups[trial] = self._sample(trial, trial_batch)
        return TrialsPlan(batch, list_reads([*chain(*groups.values())]), groups)

    def read(self, plan: TrialsPlan, rows: PartitionedRows) -> Passes:
        """Read the rows of all trials.

        Shared rows stay in memory until the last trial has been trained. Other rows are read when
        their trial arrives, except that pre-gathering fetches remote rows at once.
        """
        trainer = self.state.trainer
        if not self._shares:
            source: InputRows = rows
            if self.state.config.hop.pregather:
                source = trainer.pregather(rows, [*chain(*plan.groups.values())])
            return {trial: self._read_later(trial, plan, source) for trial in plan.groups}
        group = next(iter(plan.groups.values()))
        source = trainer.pregather(rows, group) if len(group) > 1 else rows
        passes = [trainer.read(subgraph, source) for subgraph in group]
        return dict.fromkeys(plan.groups, passes)

    def compute(self, plan: TrialsPlan, inputs: Passes) -> None:
        """Let every trial travel around all ranks and home, and train this rank's groups."""
        state = self.state
        ranks = round_trips(len(self.models), state.cluster.world, self.training)
        *timeline, homecoming = visits(ranks, state.cluster.rank)
        for trial in self.training:
            self.models[trial].packed.clear()
        for trial in timeline[0].models:
            self._buffers[trial].start([trial])
        for visit in timeline:
            if visit.step > 0:
                self._move(plan.batch, timeline[visit.step - 1], visit)
            for trial in visit.models:
                with state.log.note_fields(step=visit.step, model=trial):
                    self._train(trial, plan.batch, inputs[trial])
        self._move(plan.batch, timeline[-1], homecoming, gradients_only=True)

    def can_plan_ahead(self, epoch: int) -> bool:
        """Return whether no trial may stop early, which would change what the next epoch trains."""
        return not any(trial.config.train.patience for trial in self.models)

    def update(self, batch: GlobalBatch) -> StepReport:
        """Update the trials whose home is this rank, and report the losses of all.

        A trial is not updated if its loss or gradient is not finite.
        """
        cluster, where = self.state.cluster, batch.where
        # By trial: the loss, the square of the gradient's norm, and whether it is not finite.
        numbers = torch.zeros(len(self.training), 3, dtype=torch.float64)
        for row, trial in enumerate(self.training):
            if self._is_home(trial):
                numbers[row] = torch.tensor(self._finish(trial), dtype=torch.float64)
        cluster.all_reduce(numbers, "control", f"losses of trials, {where}")
        losses, norms, faults = dict[int, float](), dict[int, float](), list[int]()
        for trial, (loss, squares, fault) in zip(self.training, numbers.tolist(), strict=True):
            losses[trial] = loss
            if self.models[trial].config.train.reports_norms:
                norms[trial] = math.sqrt(squares)
            if fault:
                faults.append(trial)
            else:
                self._update(trial, batch, squares)
        left_out = self._leave_out(faults, losses, where) if faults else {}
        return StepReport(losses, norms, left_out)

    def hand_out(self, model: int) -> None:
        """Send a trial's parameters from its home to all ranks."""
        self._hand_out(model, self.models[model].packed.parameters)

    def complete(self, where: str, *, moments: bool = False) -> None:
        """Send all trials and their optimisers' states to all ranks, for a checkpoint.

        A trial that is saved alone was already sent by :meth:`hand_out`.
        """
        if moments:
            for trial, state in enumerate(self.models):
                self._hand_out(trial, state.packed.parameters, *state.optimizer.state().values())

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
            broadcast(self.state.cluster, tensor, self._home(trial), what)

    def _sample(self, trial: int, batch: GlobalBatch) -> list[Subgraph]:
        roots = batch.of_home(self.state.cluster.rank)
        return self.models[trial].trainer.sample(roots, batch.epoch, batch.iteration)

    def _read_later(self, trial: int, plan: TrialsPlan, rows: InputRows) -> Iterator[Pass]:
        # Popping the group frees its memory after training.
        for subgraph in plan.groups.pop(trial):
            yield self.models[trial].trainer.read(subgraph, rows)

    def _train(self, trial: int, batch: GlobalBatch, passes: Iterable[Pass]) -> None:
        state = self.models[trial]
        dropout = dropout_key(state.config.train.own_seed, batch.epoch, batch.iteration)
        with self._buffers[trial].load(trial) as packed:
            for work in passes:
                # The batches of an iteration have the same size, whatever their seed.
                state.trainer.train(packed, work, batch.size, dropout)

    def _move(
        self, batch: GlobalBatch, before: Visit, now: Visit, *, gradients_only: bool = False
    ) -> None:
        moment = (batch.epoch, batch.iteration, now.step)
        with self.state.log.note_fields(step=now.step):
            self._transport.move_models(
                self._buffers, moment, before, now, gradients_only=gradients_only
            )

    def _finish(self, trial: int) -> tuple[float, float, float]:
        """Take a trial in at home, and return its row of numbers (:meth:`update`)."""
        packed = self.models[trial].packed
        self._buffers[trial].reduce()
        packed.unscale()
        has_norm = self.models[trial].config.train.reports_norms
        squares = float(packed.gradients.square().sum()) if has_norm else 0.0
        return float(packed.loss), squares, float(not packed.is_finite())

    def _update(self, trial: int, batch: GlobalBatch, squares: float) -> None:
        state = self.models[trial]
        state.packed.scale.update(is_finite=True)
        if self._is_home(trial):
            with state.log.stage("compute", operation="update", model=trial):
                factor = state.optimizer.pace.factor_at(batch.epoch, batch.iteration)
                state.optimizer.step(state.config.train.clip_norm, squares, factor)

    def _leave_out(
        self, trials: Sequence[int], losses: Mapping[int, float], where: str
    ) -> dict[int, str]:
        """Return by trial why it was not updated, the same on every rank."""
        own = torch.tensor([int(self.models[trial].packed.own_loss.isfinite()) for trial in trials])
        operation = f"finding what is not finite, {where}"
        by_rank = self.state.cluster.all_gather(own, "control", operation)
        return {
            trial: explain(
                self.models[trial].packed,
                losses[trial],
                (by_rank[:, column] == 0).nonzero()[:, 0].tolist(),
                where,
            )
            for column, trial in enumerate(trials)
        }
