"""What every engine is, and the state that all of them train."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.engines.accumulate import GroupTrainer, overflowed
from hopper.engines.optimizer import Optimizer
from hopper.engines.parameter_homes import ParameterHomes
from hopper.engines.request import Request
from hopper.features import PartitionedRows
from hopper.hetero.learnable import FetchedRows, LearnableRows, Routes
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.migrate.packed_model import PackedModel
from hopper.partition.layouts import DividedTopology, Layout, Replicated
from hopper.run_log import RunLog, Stage
from hopper.traffic import Cause

_NODE_BYTES: Final = 8
_EDGE_BYTES: Final = 16


@dataclass
class TrainState:
    """What one rank trains, and with what.

    Attributes
    ----------
    name: of a model among several that are trained at once; a lone model has none.
    overrides: what such a model replaces in the run's configuration, by "section.key".
    """

    request: Request
    cluster: Cluster
    log: RunLog
    rows: PartitionedRows
    packed: PackedModel
    optimizer: Optimizer
    trainer: GroupTrainer
    learnable: LearnableRows
    name: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """The run's."""
        return self.request.config


@dataclass(frozen=True)
class StepReport:
    """One iteration.

    losses: by number of a model, the sum of root losses divided by the size of the global batch; of
    the models whose loss this rank knows.
    gradient_norm: over all parameters and learnable rows, before clipping; None where nobody asked.
    """

    losses: Mapping[int, float]
    gradient_norm: float | None = None


@dataclass(frozen=True)
class Plan:
    """What a rank does in an iteration, as far as sampling and routing tell.

    Attributes
    ----------
    batch: that it is for.
    reads: by name of a type, in groups, the nodes whose input rows this rank reads; and, of
        relations as ``src/rel/dst``, the edges whose features it reads.
    sent: bytes by cause that making it took.
    asked: who reads which learnable rows of whom, where there are any.
    """

    batch: GlobalBatch
    reads: Mapping[str, Sequence[NDArray[np.int64]]]
    sent: Mapping[Cause, int] = field(default_factory=dict, kw_only=True)
    asked: Sequence[Routes] = field(default=(), kw_only=True)

    @property
    def num_edges(self) -> int:
        """How many edges it holds, all hops and layers together."""
        return 0

    @property
    def nbytes(self) -> int:
        """About what it holds: a node's id; where an edge comes from, and its position."""
        nodes = sum(ids.size for groups in self.reads.values() for ids in groups)
        return _NODE_BYTES * nodes + _EDGE_BYTES * self.num_edges


PlanT = TypeVar("PlanT", bound=Plan)
InputsT = TypeVar("InputsT")


class Engine(ABC, Generic[PlanT, InputsT]):
    """A way for the work to meet the data: a plan of an iteration, the rows that it reads, what is
    computed of them, and an update.

    Engines that are ``exact`` compute the single-process gradient on the same roots and draws
    (design.md, invariant 2); they differ in what crosses the network.
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = True
    layouts: ClassVar[tuple[type[Layout], ...]] = (Replicated, DividedTopology)
    """of the graphs that it can train"""
    draws_own_nodes: ClassVar[bool] = False
    """whether ranks draw neighbours of their own nodes alone"""
    reads_remote_rows: ClassVar[bool] = True
    """whether ranks read input rows of other servers, which a cache may keep"""
    plans_on_host: ClassVar[bool] = False
    """whether it draws in host memory alone"""
    plans_together: ClassVar[bool] = False
    """whether ranks talk to each other to plan"""
    may_win: ClassVar[bool] = True
    """whether ``train.engine = "auto"`` tries it"""
    is_baseline: ClassVar[bool] = False
    """whether others' speed is told against it"""
    predicts_links: ClassVar[bool] = False
    """whether its roots may be links"""
    schedule: ClassVar[type[RootSchedule]] = RootSchedule
    """what deals roots to global batches"""

    def __init__(self, state: TrainState) -> None:
        self.state = state
        self.models: Sequence[TrainState] = [state]
        """the models that are trained; their numbers are their places here"""
        self.homes = ParameterHomes(state.packed, state.cluster)
        """of parameters that one server alone computes with"""
        self.training: Sequence[int] = [0]
        """numbers of the models that the next iteration trains, the same on every rank"""
        self.fetched = FetchedRows(state.cluster, [], {}, "")
        """learnable rows of the iteration under way"""
        self.on_gradient: list[Callable[[GlobalBatch, PackedModel], None]] = []
        """called after synchronisation, before the update, with gradient and loss in place"""
        self.replayed: Mapping[str, Any] = {}
        """decisions of the epoch in another run, to be taken again instead of anew"""
        self.records = False
        """whether the gradient of the iteration under way will be recorded"""
        self.channel = state.cluster
        """what plans are made over: connections of their own, since iterations are trained
        meanwhile"""
        if self.talks_to_plan:
            self.channel = state.cluster.second_channel()
            self.channel.traffic = state.cluster.traffic.apart()

    @property
    def reads_ahead(self) -> bool:
        """Whether :meth:`read` reads all rows of other servers that the iteration needs."""
        return self.reads_remote_rows

    @property
    def talks_to_plan(self) -> bool:
        """Whether ranks talk to each other when they plan: as the engine does, or to ask for
        learnable rows."""
        return self.plans_together or bool(self.state.learnable)

    @classmethod
    def check(cls, request: Request) -> None:
        """Refuse what this engine cannot train; most engines train anything.

        Raises
        ------
        RequestError: names the key, what was expected and what was given.
        """

    @classmethod
    def schedule_options(cls, config: Config) -> Mapping[str, Any]:
        """Keywords for :attr:`schedule`, besides what every schedule takes; most take none."""
        return {}

    @classmethod
    def is_exact(cls, config: Config) -> bool:
        """Whether it is, configured so."""
        return cls.exact and not cls.rounds(config)

    @classmethod
    def rounds(cls, config: Config) -> bool:
        """Whether values are rounded on purpose, so that gradients are near the exact ones."""
        return config.train.autocast != "off" or config.cluster.feature_wire != "stored"

    def train_step(self, batch: GlobalBatch) -> StepReport:
        """Train one global batch: plan, ask, read and :meth:`train` one after the other."""
        plan, rows = self.plan_and_ask(batch), self.state.rows
        with rows.one_operation():
            inputs = self.read(plan, rows)
        return self.train(plan, inputs)

    def train(self, plan: PlanT, inputs: InputsT) -> StepReport:
        """Train what was planned and read, and update every model that is in :attr:`training`."""
        self.state.cluster.traffic.add(plan.sent)
        self.state.packed.clear()
        self.fetch_learnable(plan)
        if self.goes_back_once(plan):
            self.fetched.push_early()
        self.compute(plan, inputs)
        return self.update(plan.batch)

    @abstractmethod
    def plan(self, batch: GlobalBatch) -> PlanT:
        """What this rank does for a batch: sampling and routing alone, a function of the batch.

        It may be called while earlier batches are read and trained, from another thread. Every rank
        has to call it: plans may be made by talking to other ranks, over a channel of their own.
        """

    def plan_and_ask(self, batch: GlobalBatch) -> PlanT:
        """A plan, and the owners of learnable rows told who reads them; otherwise as :meth:`plan`.
        Which rows are read is known long before what they are."""
        plan = self._plan_and_count(batch)
        if not self.state.learnable:
            return plan
        with self._learnable_stage("sample"):
            asked = self.state.learnable.ask(plan.reads, batch.where, self.channel)
        taken = self.channel.traffic.take()
        return replace(plan, asked=asked, sent=_sum(plan.sent, taken))

    def _plan_and_count(self, batch: GlobalBatch) -> PlanT:
        """A plan, and what other servers were asked to draw for it."""
        elsewhere = [each.trainer.sampler.elsewhere for each in self.models]
        # Of one sampler for several models there is one.
        distinct = list(dict.fromkeys(each for each in elsewhere if each is not None))
        for each in distinct:
            # What plans took that nobody trains.
            each.take_sent()
        plan = self.plan(batch)
        for each in distinct:
            plan = replace(plan, sent=_sum(plan.sent, each.take_sent()))
        return plan

    @abstractmethod
    def read(self, plan: PlanT, rows: PartitionedRows) -> InputsT:
        """The input rows of a plan, from wherever they are: own, cached, remote; not those that are
        learned, which the updates before it have yet to make.

        It may be called while earlier batches are trained, from another thread.

        Parameters
        ----------
        rows: where they are read, then or when they are computed with.
        """

    @abstractmethod
    def compute(self, plan: PlanT, inputs: InputsT) -> None:
        """Add the gradient and the loss of this rank's part to the packed model."""

    def goes_back_once(self, plan: PlanT) -> bool:
        """Whether :meth:`compute` makes all gradients of learnable rows in one backward pass, so
        that these can leave within it."""
        return False

    def sees_epoch(self, epoch: int) -> bool:
        """Whether plans of an epoch can be made before the one before it has ended."""
        return True

    def compares_iterations(self, epoch: int) -> bool:
        """Whether times of single iterations of the epoch under way are compared. No more than one
        iteration is read ahead then, so that each time tells what its own iteration costs."""
        return False

    @classmethod
    def plan_key(cls, config: Config) -> list[Any]:
        """What plans depend on besides graph, model depth, sampler and schedule: engines with
        equal keys read the same rows."""
        return [cls.name]

    def close(self) -> None:
        """Let go of connections; the engine does not train again; every rank has to call it."""
        if self.talks_to_plan:
            self.channel.close()
        self.state.learnable.close()

    def decisions(self, epoch: int) -> dict[str, Any]:
        """What was decided for the epoch under way; recorded, so that it can be replayed."""
        return {}

    def epoch_ended(self, epoch: int, seconds: Mapping[int, float]) -> None:
        """Take note of how long an epoch's iterations took.

        Parameters
        ----------
        seconds: by iteration, the maximum over ranks, the same on all of them. After a resumption
            within the epoch those before it are missing, and so are those that follow a checkpoint.
        """

    def decision_state(self) -> dict[str, Any]:
        """What the next decisions depend on, as JSON (for checkpoints)."""
        return {}

    def restore_decisions(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`decision_state` returned."""

    def fetch_learnable(self, plan: PlanT) -> None:
        """Begin to read the learnable rows of a plan, if there are any; collective."""
        with self._learnable_stage("gather"):
            self.fetched = self.state.learnable.fetch(
                plan.asked, plan.batch.where, waiting=lambda: self._learnable_stage("gather")
            )
        self.state.trainer.learned = self.fetched

    def _learnable_stage(self, stage: Stage) -> AbstractContextManager[object]:
        """Times what is done with learnable rows, where there are any."""
        if not self.state.learnable:
            return nullcontext()
        return self.state.log.stage(stage, operation="learnable rows")

    def sum_gradients(self, operation: str) -> None:
        """Add gradients and loss up over ranks, but what one server alone computes with."""
        self.homes.sum_gradients(operation)

    def parameter_squares(self, operation: str) -> float:
        """The sum of squares of all parameters' gradients, to the same bits on every rank: with
        another number of threads a rank adds up in another order, so one's sum is everyone's."""
        return self.homes.squares(operation)

    def complete_recorded(self, where: str) -> None:
        """Make parameters and gradients whole on every rank, where they will be recorded."""
        packed = self.state.packed
        self.homes.complete([packed.parameters, packed.gradients], f"recording, {where}")

    def complete(self, where: str, *, moments: bool = False) -> None:
        """Make parameters, and the optimiser's state, whole on every rank; every rank has to call
        it before they are saved. Most engines keep all of it everywhere.

        Parameters
        ----------
        moments: whether all models are saved with their optimisers' states, as in a checkpoint;
            otherwise one is, without, which was handed out to be scored.
        """
        parameters = self.state.packed.parameters
        tensors = [parameters]
        if moments:
            state = self.state.optimizer.state().values()
            tensors += [each for each in state if each.shape == parameters.shape]
        self.homes.complete(tensors, f"completing the model, {where}")

    def hand_out(self, model: int) -> None:
        """Give every rank the parameters that it scores a model with; every rank has to call it
        before that. Most engines keep them everywhere."""

    def spread_losses(self, losses: Mapping[int, list[float]]) -> Mapping[int, list[float]]:
        """Losses by number of a model and iteration, with those that other ranks know and this one
        does not; every rank has to call it. Most engines know all of them everywhere."""
        return losses

    def _unscale(self, where: str) -> None:
        """Let gradients be those of the loss; every rank learns whether any rank's overflowed."""
        state = self.state
        is_finite = state.trainer.unscale(state.packed) and self.fetched.is_finite()
        broken = torch.tensor([int(not is_finite)])
        state.cluster.all_reduce(broken, "control", f"looking for overflows, {where}")
        if int(broken):
            raise overflowed(where)

    def update(self, batch: GlobalBatch) -> StepReport:
        """Sum gradients and loss over ranks, then update what every rank holds."""
        state, where = self.state, batch.where
        if state.cluster.device.type == "cuda":
            # What was launched is computing, not waiting for others.
            with state.log.stage("compute", operation="finish"):
                torch.cuda.current_stream(state.cluster.device).synchronize()
        with self._learnable_stage("sync"):
            # They travel while slower ranks are waited for, and parameters' gradients summed.
            self.fetched.start_push()
        with state.log.stage("wait", operation="sync"):
            state.cluster.arrive(f"waiting for all ranks to finish their roots, {where}")
        with state.log.stage("sync"):
            self.sum_gradients(f"summing gradients, {where}")
            loss = float(state.packed.loss)
            with self._learnable_stage("sync"):
                self.fetched.push(state.trainer.scale)
        if state.trainer.scale != 1.0:
            self._unscale(where)
        if self.records:
            self.complete_recorded(where)
        for told in self.on_gradient:
            told(batch, state.packed)
        clip = state.config.train.clip_norm
        squares: float | None = None
        if clip or state.config.train.gradient_norms:
            with state.log.stage("sync", operation="gradient norm"):
                squares = self.parameter_squares(f"the norm of gradients, {where}")
                squares += self.fetched.squares(f"the norm of learnable rows, {where}")
        factor = state.optimizer.pace.factor_at(batch.epoch, batch.iteration)
        with state.log.stage("compute", operation="update", rate_factor=factor):
            scale = state.optimizer.step(clip, squares, factor)
            with self._learnable_stage("compute"):
                self.fetched.step(scale, factor)
        return StepReport({0: loss}, None if squares is None else math.sqrt(squares))


def _sum(some: Mapping[Cause, int], others: Mapping[Cause, int]) -> dict[Cause, int]:
    """Bytes by cause, both together."""
    return {each: some.get(each, 0) + others.get(each, 0) for each in {**some, **others}}
