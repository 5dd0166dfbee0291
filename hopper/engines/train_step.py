"""One iteration under any engine: plan and read, then clear, compute, synchronise and update."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Generic

import torch
from torch import Tensor

from hopper.cluster.cluster import Cluster
from hopper.cluster.traffic import Cause
from hopper.engines.engine import Engine, InputsT, PlanT, TrainState
from hopper.engines.sharded_parameters import ShardedParameters
from hopper.features import PartitionedRows
from hopper.hetero.learnable import FetchedRows
from hopper.micrograph.route import GlobalBatch
from hopper.migrate.flat_model import FlatModel
from hopper.timing.run_log import Stage


@dataclass(frozen=True)
class StepReport:
    """The result of one iteration, by number of a model."""

    losses: Mapping[int, float]
    """the sum of root losses divided by the size of the global batch"""
    gradient_norms: Mapping[int, float] = field(default_factory=dict)
    """the norm over all parameters and learnable rows, before clipping, if it is asked for"""
    left_out: Mapping[int, str] = field(default_factory=dict)
    """if the update was left out: what was not finite, and on which ranks; "" if a smaller loss
    scale may help"""


class Models(Sequence[TrainState]):
    """The models of a run, by number: who owns their parameters, and how they are updated.

    Every rank must call every method.
    """

    def __init__(self, states: Sequence[TrainState]) -> None:
        self._states = states
        self.training: Sequence[int] = range(len(states))
        """numbers of the models that the next iteration trains"""
        self.on_gradient: list[Callable[[GlobalBatch, FlatModel], None]] = []
        """callbacks between synchronisation and the update of a lone model"""

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, number: Any) -> Any:
        return self._states[number]

    @property
    def stop_apart(self) -> bool:
        """Whether a model may stop before others do, which changes what later epochs plan."""
        return len(self) > 1 and any(model.config.train.patience for model in self)

    @abstractmethod
    def update(self, batch: GlobalBatch) -> StepReport:
        """Complete gradients and losses, and update every model whose numbers are all finite."""

    @abstractmethod
    def hand_out(self, number: int) -> None:
        """Give every rank the parameters of a model that it needs to score it."""

    @abstractmethod
    def complete(self, where: str, *, moments: bool = False, gradients: bool = False) -> None:
        """Complete the parameters on every rank before they are saved, with gradients to be
        recorded, or with the ``moments`` of all optimisers for a checkpoint. Without these, only
        the model that was handed out is saved."""


class SparseStep:
    """Tells owners with the plan which learnable rows are read, and fetches these when compute is
    due. Without learnable rows nothing is sent."""

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self.fetched = FetchedRows(state.cluster, [], {}, "")
        """the rows of the current iteration"""

    def ask(self, plan: PlanT) -> PlanT:
        """Tell owners which ranks read which rows: that is known long before the rows' values."""
        state = self._state
        if not state.learnable:
            return plan
        with self.stage("sample"):
            asked = state.learnable.ask(plan.reads, plan.batch.where, state.channel)
        return replace(plan, asked=asked)

    def fetch(self, plan: PlanT) -> None:
        """Begin to read the rows of a plan. Every rank must call it."""
        state = self._state
        asked, where = plan.asked, plan.batch.where
        with self.stage("gather"):
            self.fetched = state.learnable.fetch(asked, where, lambda: self.stage("gather"))
        state.trainer.learned = self.fetched
        if plan.one_backward:
            self.fetched.push_early()

    def stage(self, stage: Stage) -> AbstractContextManager[object]:
        """Time work on learnable rows, if there are any."""
        if not self._state.learnable:
            return nullcontext()
        return self._state.log.stage(stage, operation="learnable rows")


class TrainStep(Generic[PlanT, InputsT]):
    """Trains iterations with an engine. Every rank must make the same calls.

    Planning and reading may run ahead in other threads (:mod:`hopper.pipeline`).
    """

    def __init__(self, engine: Engine[PlanT, InputsT], models: Models, sparse: SparseStep) -> None:
        self.engine, self.state = engine, engine.state
        self.models, self.sparse = models, sparse

    @property
    def name(self) -> str:
        """The name of the engine."""
        return self.engine.spec.name

    @property
    def talks_to_plan(self) -> bool:
        """Whether ranks talk to each other to plan."""
        return self.state.channel is not self.state.cluster

    def plan_and_ask(self, batch: GlobalBatch) -> PlanT:
        """Make a plan, and tell the owners of learnable rows who reads them."""
        # Bytes of earlier plans that were never trained do not belong to this plan.
        self._take_sent()
        plan = self.sparse.ask(self.engine.plan(batch))
        return replace(plan, sent=self._take_sent())

    def _take_sent(self) -> Counter[Cause]:
        """Return the bytes that planning has sent since the last call, by cause."""
        sent = Counter[Cause]()
        # Several models may share a sampler, whose bytes count once.
        for draws in {model.trainer.sampler.elsewhere for model in self.models}:
            if draws is not None:
                sent.update(draws.traffic.take())
        if self.talks_to_plan:
            sent.update(self.state.channel.traffic.take())
        return sent

    def read(self, plan: PlanT, rows: PartitionedRows) -> InputsT:
        """Read the input rows of a plan, except learnable ones."""
        return self.engine.read(plan, rows)

    def train(self, plan: PlanT, inputs: InputsT) -> StepReport:
        """Train a plan on the rows that were read, and update the models."""
        self.state.cluster.traffic.add(plan.sent)
        for number in self.models.training:
            self.models[number].packed.clear()
        self.sparse.fetch(plan)
        self.engine.compute(plan, inputs)
        return self.models.update(plan.batch)

    def close(self) -> None:
        """Close connections. Every rank must call it, and nothing is trained afterwards."""
        if self.talks_to_plan:
            self.state.channel.close()
        self.state.learnable.close()


class OneModel(Models):
    """One model that all ranks train together.

    Every rank has all of its parameters, unless the engine's ``parameter_servers`` shard them.
    """

    def __init__(self, engine: Engine[Any, Any], sparse: SparseStep) -> None:
        super().__init__([engine.state])
        state = self._state = engine.state
        self._sparse = sparse
        self._parameters = ShardedParameters(state.packed, state.cluster, engine.parameter_servers)

    def update(self, batch: GlobalBatch) -> StepReport:
        """Sum gradients and loss over ranks, then update parameters and learnable rows."""
        state, where, fetched = self._state, batch.where, self._sparse.fetched
        packed, train = state.packed, state.config.train
        loss, own = self._synchronise(where)
        for callback in self.on_gradient:
            callback(batch, packed)
        if not self._is_finite(where):
            is_finite = [packed.own_loss.isfinite(), own.isfinite() and fetched.own_is_finite()]
            losses, gradients = find_not_finite(state.cluster, is_finite, where)
            reason = explain_left_out(packed, loss, losses or gradients, where)
            return StepReport({0: loss}, {0: math.nan} if train.reports_norms else {}, {0: reason})
        packed.scale.update(is_finite=True)
        squares = 0.0
        if train.reports_norms:
            with state.log.stage("sync", operation="gradient norm"):
                squares = self._parameters.squares(f"the norm of gradients, {where}")
                squares += fetched.squares(f"the norm of learnable rows, {where}")
        factor = state.optimizer.scheduler.factor_at(batch.epoch, batch.iteration)
        with state.log.stage("compute", operation="update", rate_factor=factor):
            scale = state.optimizer.step(train.clip_norm, squares, factor)
            with self._sparse.stage("compute"):
                fetched.step(scale, factor)
        return StepReport({0: loss}, {0: math.sqrt(squares)} if train.reports_norms else {})

    def hand_out(self, number: int) -> None:
        """Complete the parameters if scoring reads whole rows that no server has."""
        graph = self._state.rows.graph
        if not graph.layout.has_whole_rows(graph.schema.target_type()):
            tensors = [self._state.packed.parameters]
            self._parameters.complete(tensors, "completing the model to be scored")

    def complete(self, where: str, *, moments: bool = False, gradients: bool = False) -> None:
        """Complete what only one server has, on every rank."""
        packed = self._state.packed
        tensors = [packed.parameters, *([packed.gradients] if gradients else [])]
        if moments:
            state = self._state.optimizer.state().values()
            tensors += [tensor for tensor in state if tensor.shape == packed.parameters.shape]
        self._parameters.complete(tensors, f"completing the model, {where}")

    def _synchronise(self, where: str) -> tuple[float, Tensor]:
        """Sum gradients and loss over ranks; return the loss, and the total of this rank's own part
        of the sums, which is finite if all of it is."""
        state, packed, sparse = self._state, self._state.packed, self._sparse
        if state.cluster.device.type == "cuda":
            # Kernels that still run count as computing, not as waiting for other ranks.
            with state.log.stage("compute", operation="finish"):
                torch.cuda.current_stream(state.cluster.device).synchronize()
        with sparse.stage("sync"):
            # Their gradients travel while this rank waits and while dense gradients are summed.
            sparse.fetched.start_push()
        with state.log.stage("wait", operation="sync"):
            state.cluster.arrive(f"waiting for all ranks to finish their roots, {where}")
        with state.log.stage("sync"):
            own = packed.accumulated.sum()
            self._parameters.sum_gradients(f"summing gradients, {where}")
            loss = float(packed.loss)
            with sparse.stage("sync"):
                sparse.fetched.push(packed.scale.factor)
        packed.unscale()
        return loss, own

    def _is_finite(self, where: str) -> bool:
        """Return whether loss and gradients, summed over ranks, are finite; the same everywhere."""
        packed, cluster = self._state.packed, self._state.cluster
        is_finite = packed.is_finite() and self._sparse.fetched.is_finite()
        if self._parameters.numbers_apart or self._state.learnable:
            # Not every rank has all sums.
            faults = torch.tensor([int(not is_finite)])
            cluster.all_reduce(faults, "control", f"looking for what is not finite, {where}")
            is_finite = not int(faults)
        return is_finite


def find_not_finite(cluster: Cluster, is_finite: Sequence[Any], where: str) -> list[list[int]]:
    """Return for each of some numbers the ranks on which it was not finite; collective."""
    own = torch.tensor([int(each) for each in is_finite])
    by_rank = cluster.all_gather(own, "control", f"finding what is not finite, {where}")
    return [(column == 0).nonzero()[:, 0].tolist() for column in by_rank.T]


def explain_left_out(packed: FlatModel, loss: float, ranks: Sequence[int], where: str) -> str:
    """Lower the loss scale of a model whose sums are not finite (docs/howto/divergence.md), and say
    what was not, when, and on which ranks, as far as they are known; "" if that may help."""
    may_help = math.isfinite(loss) and packed.scale.factor > 1.0
    packed.scale.update(is_finite=False)
    if may_help:
        return ""
    what = f"the loss is {loss}"
    if math.isfinite(loss):
        what = f"the loss is {loss:.6g}, and its gradient is not finite"
    names = ", ".join(map(str, ranks))
    on = f" on rank{'s' if len(ranks) > 1 else ''} {names}" if ranks else ""
    return f"{what}{on} ({where})"
