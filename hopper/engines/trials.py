"""Different models, called trials, that are trained at once over one partitioned graph.

A model travels from its home around all ranks and back, where its optimiser updates it (HopGNN's
migration). The features that a rank reads serve every visiting model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from hopper.engines.data_parallel import count_reads
from hopper.engines.engine import Engine, Plan, TrainState
from hopper.engines.hop import Hop
from hopper.engines.micro_batch import MicroBatch
from hopper.engines.request import Request
from hopper.engines.train_step import Models, StepReport, explain_left_out, find_not_finite
from hopper.features import InputRows, PartitionedRows
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.micrograph.sample import dropout_key
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.flat_model import FlatModel
from hopper.migrate.migration import ReplicaBuffers, Transport, broadcast
from hopper.migrate.schedule import round_trips, visits

MicroBatches = Mapping[int, Iterable[MicroBatch]]
"""The micro-batches of each trial; an empty group has none."""


class Trials(Models):
    """Independent models. The home of trial d is rank d mod N.

    The home holds the trial's parameters and makes its updates. Other ranks keep a module for the
    visiting model; their buffers and optimisers of the trial have no meaning between visits.
    """

    def update(self, batch: GlobalBatch) -> StepReport:
        """Update the trials whose home is this rank, and report the losses of all."""
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
                continue
            state = self[trial]
            state.packed.scale.update(is_finite=True)
            if self._is_home(trial):
                with state.log.stage("compute", operation="update", model=trial):
                    factor = state.optimizer.scheduler.factor_at(batch.epoch, batch.iteration)
                    state.optimizer.step(state.config.train.clip_norm, squares, factor)
        left_out: dict[int, str] = {}
        if faults:
            is_finite = [self[trial].packed.own_loss.isfinite() for trial in faults]
            by_trial = zip(faults, find_not_finite(cluster, is_finite, where), strict=True)
            left_out = {
                trial: explain_left_out(self[trial].packed, losses[trial], ranks, where)
                for trial, ranks in by_trial
            }
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


def _finish(state: TrainState) -> tuple[float, float, float]:
    """Return a trial's row of numbers (:meth:`Trials.update`) at its home."""
    packed, squares = state.packed, 0.0
    packed.unscale()
    if state.config.train.reports_norms:
        squares = float(packed.gradients.square().sum())
    return float(packed.loss), squares, float(not packed.is_finite())


@dataclass(frozen=True)
class TrialsPlan(Plan):
    """The groups that visiting models train on a rank, by trial, with a subgraph for each
    micro-batch. With shared sampling all trials have the same."""

    groups: dict[int, list[Subgraph]]


class IndependentHop(Engine[TrialsPlan, MicroBatches]):
    """The ``hop`` engine with independent replicas.

    Each trial has the configuration that trains it alone. With shared sampling all have the same
    trainer; otherwise each has a schedule of its batches.
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
            subgraphs = self._sample(0, batch)
            groups = dict.fromkeys(training, subgraphs)
        else:
            groups = {}
            for trial in training:
                trial_batch = self._schedules[trial].batch(batch.epoch, batch.iteration)
                with self.state.log.note_fields(model=trial):
                    groups[trial] = self._sample(trial, trial_batch)
            subgraphs = [*chain(*groups.values())]
        return TrialsPlan(batch, groups=groups, reads_ahead=True, **count_reads(subgraphs))

    def read(self, plan: TrialsPlan, rows: PartitionedRows) -> MicroBatches:
        """Read the rows of all trials.

        Shared rows stay in memory until the last trial has been trained. Other rows are read when
        their trial arrives, except that pre-gathering fetches remote rows at once.
        """
        trainer = self.state.trainer
        source: InputRows = rows
        if not self._shares:
            if self.state.config.hop.pregather:
                source = trainer.pregather(rows, plan.reads)
            return {trial: self._read_later(trial, plan, source) for trial in plan.groups}
        group = next(iter(plan.groups.values()))
        if len(group) > 1:
            source = trainer.pregather(rows, plan.reads)
        micro_batches = [trainer.read(subgraph, source) for subgraph in group]
        return dict.fromkeys(plan.groups, micro_batches)

    def compute(self, plan: TrialsPlan, inputs: MicroBatches) -> None:
        """Let every trial travel around all ranks and home, and train this rank's groups."""
        cluster, batch = self.state.cluster, plan.batch

        def train(_step: int, trial: int, packed: FlatModel) -> None:
            state = self._trials[trial]
            dropout = dropout_key(state.config.train.own_seed, batch.epoch, batch.iteration)
            for micro_batch in inputs[trial]:
                # The batches of an iteration have the same size, whatever their seed.
                state.trainer.train(packed, micro_batch, batch.size, dropout)

        trips = round_trips(len(self._trials), cluster.world, self._trials.training)
        timeline = visits(trips, cluster.rank)
        self._transport.travel(self._buffers, timeline, batch, train, returns=True)

    def _sample(self, trial: int, batch: GlobalBatch) -> list[Subgraph]:
        roots = batch.of_home(self.state.cluster.rank)
        return self._trials[trial].trainer.sample(roots, batch.epoch, batch.iteration)

    def _read_later(self, trial: int, plan: TrialsPlan, rows: InputRows) -> Iterator[MicroBatch]:
        # Popping the group frees its memory after training.
        for subgraph in plan.groups.pop(trial):
            yield self._trials[trial].trainer.read(subgraph, rows)
