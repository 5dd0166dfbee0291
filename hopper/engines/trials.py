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

import torch
from torch import Tensor

from hopper.engines.data_parallel import count_edges, list_reads
from hopper.engines.engine import Engine, Plan, TrainState
from hopper.engines.hop import Hop
from hopper.engines.micro_batch import MicroBatch
from hopper.engines.models import Models, StepReport, explain_left_out
from hopper.engines.request import Request
from hopper.features import InputRows, PartitionedRows
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.micrograph.sample import dropout_key
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.migration import ReplicaBuffers, Transport, broadcast
from hopper.migrate.schedule import Visit, round_trips, visits

MicroBatches = Mapping[int, Iterable[MicroBatch]]
"""The micro-batches of each trial; an empty group has none."""


class Trials(Models):
    """Independent models. The home of trial d is rank d mod N.

    The home holds the trial's parameters and makes its updates. Other ranks keep a module for the
    visiting model; their buffers and optimisers of the trial have no meaning between visits.
    """

    def clear(self) -> None:
        """Set gradients and losses of the trials that are trained to zero."""
        for trial in self.training:
            self[trial].packed.clear()

    def update(self, batch: GlobalBatch) -> StepReport:
        """Update the trials whose home is this rank, and report the losses of all.

        A trial is not updated if its loss or gradient is not finite.
        """
        cluster, where = self[0].cluster, batch.where
        # By trial: the loss, the square of the gradient's norm, and whether it is not finite.
        numbers = torch.zeros(len(self.training), 3, dtype=torch.float64)
        for row, trial in enumerate(self.training):
            if self._is_home(trial):
                numbers[row] = torch.tensor(_finish(self[trial]), dtype=torch.float64)
        cluster.all_reduce(numbers, "control", f"losses of trials, {where}")
        losses, norms, faults = dict[int, float](), dict[int, float](), list[int]()
        for trial, (loss, squares, fault) in zip(self.training, numbers.tolist(), strict=True):
            losses[trial] = loss
            if self[trial].config.train.reports_norms:
                norms[trial] = math.sqrt(squares)
            if fault:
                faults.append(trial)
            else:
                self._update(trial, batch, squares)
        left_out = self._leave_out(faults, losses, where) if faults else {}
        return StepReport(losses, norms, left_out)

    def hand_out(self, number: int) -> None:
        """Send a trial's parameters from its home to all ranks."""
        self._hand_out(number, self[number].packed.parameters)

    def complete(self, where: str, *, moments: bool = False, gradients: bool = False) -> None:
        """Send all trials and their optimisers' states to all ranks, for a checkpoint.

        A trial that is saved alone was already sent by :meth:`hand_out`.
        """
        if moments:
            for trial, state in enumerate(self):
                self._hand_out(trial, state.packed.parameters, *state.optimizer.state().values())

    def _is_home(self, trial: int) -> bool:
        return trial % self[0].cluster.world == self[0].cluster.rank

    def _hand_out(self, trial: int, *tensors: Tensor) -> None:
        cluster = self[0].cluster
        for tensor in tensors:
            broadcast(cluster, tensor, trial % cluster.world, f"handing out trial {trial}")

    def _update(self, trial: int, batch: GlobalBatch, squares: float) -> None:
        state = self[trial]
        state.packed.scale.update(is_finite=True)
        if self._is_home(trial):
            with state.log.stage("compute", operation="update", model=trial):
                factor = state.optimizer.scheduler.factor_at(batch.epoch, batch.iteration)
                state.optimizer.step(state.config.train.clip_norm, squares, factor)

    def _leave_out(
        self, trials: Sequence[int], losses: Mapping[int, float], where: str
    ) -> dict[int, str]:
        """Return by trial why it was not updated, the same on every rank."""
        own = torch.tensor([int(self[trial].packed.own_loss.isfinite()) for trial in trials])
        operation = f"finding what is not finite, {where}"
        by_rank = self[0].cluster.all_gather(own, "control", operation)
        return {
            trial: explain_left_out(
                self[trial].packed,
                losses[trial],
                (by_rank[:, column] == 0).nonzero()[:, 0].tolist(),
                where,
            )
            for column, trial in enumerate(trials)
        }


def _finish(state: TrainState) -> tuple[float, float, float]:
    """Return a trial's row of numbers (:meth:`Trials.update`) at its home."""
    packed = state.packed
    packed.unscale()
    squares = 0.0
    if state.config.train.reports_norms:
        squares = float(packed.gradients.square().sum())
    return float(packed.loss), squares, float(not packed.is_finite())


@dataclass(frozen=True)
class TrialsPlan(Plan):
    """The groups that visiting models train on a rank.

    Attributes
    ----------
    groups: by trial, a subgraph for each micro-batch. With shared sampling all trials have the
        same.
    """

    groups: dict[int, list[Subgraph]]


class IndependentHop(Engine[TrialsPlan, MicroBatches]):
    """The ``hop`` engine with independent replicas.

    Parameters
    ----------
    request: the request of the run.
    trials: the state of each trial, with the configuration that trains it alone. With shared
        sampling all have the same trainer.
    schedules: by trial, the schedule of its batches. Shared sampling does not use them.
    """

    spec = Hop.spec

    def __init__(self, request: Request, trials: Trials, schedules: Sequence[RootSchedule]) -> None:
        super().__init__(replace(trials[0], request=request))
        self._trials, self._schedules = trials, schedules
        self._buffers = {
            number: ReplicaBuffers(trial.packed, moves_parameters=True)
            for number, trial in enumerate(trials)
        }
        self._transport = Transport(self.state.cluster, self.state.log, "model")
        self._shares = request.config.hop.share_sampling

    def plan(self, batch: GlobalBatch) -> TrialsPlan:
        """Sample this rank's roots, once for all trials or for each trial by its own batch."""
        training = self._trials.training
        if self._shares:
            group = self._sample(0, batch)
            groups, subgraphs = dict.fromkeys(training, group), group
        else:
            groups = {}
            for trial in training:
                trial_batch = self._schedules[trial].batch(batch.epoch, batch.iteration)
                with self.state.log.note_fields(model=trial):
                    groups[trial] = self._sample(trial, trial_batch)
            subgraphs = [*chain(*groups.values())]
        edges, reads = count_edges(subgraphs), list_reads(subgraphs)
        return TrialsPlan(batch, reads, groups, reads_ahead=True, num_edges=edges)

    def read(self, plan: TrialsPlan, rows: PartitionedRows) -> MicroBatches:
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
        micro_batches = [trainer.read(subgraph, source) for subgraph in group]
        return dict.fromkeys(plan.groups, micro_batches)

    def compute(self, plan: TrialsPlan, inputs: MicroBatches) -> None:
        """Let every trial travel around all ranks and home, and train this rank's groups."""
        state, training = self.state, self._trials.training
        ranks = round_trips(len(self._trials), state.cluster.world, training)
        *timeline, homecoming = visits(ranks, state.cluster.rank)
        for trial in timeline[0].models:
            self._buffers[trial].start([trial])
        for visit in timeline:
            if visit.step > 0:
                self._move(plan.batch, timeline[visit.step - 1], visit)
            for trial in visit.models:
                with state.log.note_fields(step=visit.step, model=trial):
                    self._train(trial, plan.batch, inputs[trial])
        self._move(plan.batch, timeline[-1], homecoming, gradients_only=True)
        for trial in training:
            self._buffers[trial].reduce()

    def _sample(self, trial: int, batch: GlobalBatch) -> list[Subgraph]:
        roots = batch.of_home(self.state.cluster.rank)
        return self._trials[trial].trainer.sample(roots, batch.epoch, batch.iteration)

    def _read_later(self, trial: int, plan: TrialsPlan, rows: InputRows) -> Iterator[MicroBatch]:
        # Popping the group frees its memory after training.
        for subgraph in plan.groups.pop(trial):
            yield self._trials[trial].trainer.read(subgraph, rows)

    def _train(self, trial: int, batch: GlobalBatch, inputs: Iterable[MicroBatch]) -> None:
        state = self._trials[trial]
        dropout = dropout_key(state.config.train.own_seed, batch.epoch, batch.iteration)
        with self._buffers[trial].load(trial) as packed:
            for micro_batch in inputs:
                # The batches of an iteration have the same size, whatever their seed.
                state.trainer.train(packed, micro_batch, batch.size, dropout)

    def _move(
        self, batch: GlobalBatch, before: Visit, now: Visit, *, gradients_only: bool = False
    ) -> None:
        moment = (batch.epoch, batch.iteration, now.step)
        with self.state.log.note_fields(step=now.step):
            self._transport.move_models(
                self._buffers, moment, before, now, gradients_only=gradients_only
            )
