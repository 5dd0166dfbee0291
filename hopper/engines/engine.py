"""The interface of every engine, and the state that engines train."""

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
from torch import Tensor

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.engines.accumulate import GroupTrainer
from hopper.engines.non_finite import leave_out
from hopper.engines.optimizer import Optimizer
from hopper.engines.parameter_homes import ParameterHomes
from hopper.engines.request import Request
from hopper.features import PartitionedRows
from hopper.hetero.learnable import FetchedRows, LearnableRows, Routes
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.migrate.flat_model import FlatModel
from hopper.partition.by_node import DividedTopology, Replicated
from hopper.partition.layout import Layout
from hopper.run_log import RunLog, Stage
from hopper.traffic import Cause

_NODE_BYTES: Final = 8
_EDGE_BYTES: Final = 16


@dataclass
class TrainState:
    """The models, rows and connections that one rank trains with.

    Attributes
    ----------
    name: the model's name where several models are trained at once; empty for a lone model.
    overrides: the configuration values that this model replaces, by "section.key".
    """

    request: Request
    cluster: Cluster
    log: RunLog
    rows: PartitionedRows
    packed: FlatModel
    optimizer: Optimizer
    trainer: GroupTrainer
    learnable: LearnableRows
    name: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """The configuration of the run."""
        return self.request.config


@dataclass(frozen=True)
class StepReport:
    """The result of one iteration.

    Attributes
    ----------
    losses: by number of a model, the sum of root losses divided by the size of the global batch.
    gradient_norms: by number of a model, the norm over all its parameters and learnable rows,
        before clipping. Empty if the configuration does not ask for it.
    left_out: by number of a model whose update was left out, since not all numbers were finite,
        what was not finite, and on which ranks. It is empty if a smaller loss scale may help.
    """

    losses: Mapping[int, float]
    gradient_norms: Mapping[int, float] = field(default_factory=dict)
    left_out: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A rank's work in an iteration, as far as sampling and routing determine it.

    Attributes
    ----------
    batch: the global batch that is planned.
    reads: by name of a type, the nodes whose input rows this rank reads, in groups. A relation as
        ``src/rel/dst`` names the edges whose features it reads.
    sent: the bytes, by cause, that planning sent.
    asked: which rank reads which learnable rows of which other rank; empty if there are none.
    """

    batch: GlobalBatch
    reads: Mapping[str, Sequence[NDArray[np.int64]]]
    sent: Mapping[Cause, int] = field(default_factory=dict, kw_only=True)
    asked: Sequence[Routes] = field(default=(), kw_only=True)

    @property
    def num_edges(self) -> int:
        """The number of edges that the plan holds, in all hops and layers together."""
        return 0

    @property
    def nbytes(self) -> int:
        """The plan's approximate size: an id for a node, a source and a position for an edge."""
        nodes = sum(ids.size for groups in self.reads.values() for ids in groups)
        return _NODE_BYTES * nodes + _EDGE_BYTES * self.num_edges


PlanT = TypeVar("PlanT", bound=Plan)
InputsT = TypeVar("InputsT")


class Engine(ABC, Generic[PlanT, InputsT]):
    """A way to bring models and rows together.

    An engine plans an iteration, reads the rows of the plan, computes gradients from them and
    updates the models. Engines that are ``exact`` compute the gradient that a single process would
    compute on the same roots and draws. They differ in what crosses the network
    (docs/inside/engines.md).
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = True
    layouts: ClassVar[tuple[type[Layout], ...]] = (Replicated, DividedTopology)
    """the layouts of graphs that the engine can train"""
    draws_own_nodes: ClassVar[bool] = False
    """whether a rank draws neighbours only of the nodes that it owns"""
    reads_remote_rows: ClassVar[bool] = True
    """whether ranks read input rows of other servers, which a cache may keep"""
    plans_on_host: ClassVar[bool] = False
    """whether the engine draws in host memory only"""
    plans_together: ClassVar[bool] = False
    """whether ranks talk to each other to plan"""
    may_win: ClassVar[bool] = True
    """whether ``train.engine = "auto"`` tries it"""
    is_baseline: ClassVar[bool] = False
    """whether the speed of other engines is compared with this one's"""
    predicts_links: ClassVar[bool] = False
    """whether roots may be links"""
    raised_option: ClassVar[str] = ""
    """the "section.key" of a whole number that is raised before a run for as long as iterations get
    faster, where it is "adaptive" or left open"""
    schedule: ClassVar[type[RootSchedule]] = RootSchedule
    """the class that deals roots to global batches"""

    def __init__(self, state: TrainState) -> None:
        self.state = state
        self.models: Sequence[TrainState] = [state]
        """the models that are trained; a model's number is its index here"""
        self.homes = ParameterHomes(state.packed, state.cluster)
        """the parameters that only one server computes with"""
        self.training: Sequence[int] = [0]
        """numbers of the models that the next iteration trains, the same on every rank"""
        self.fetched = FetchedRows(state.cluster, [], {}, "")
        """the learnable rows of the current iteration"""
        self.on_gradient: list[Callable[[GlobalBatch, FlatModel], None]] = []
        """callbacks that run after synchronisation and before the update, when the gradient and
        the loss are complete"""
        self.records = False
        """whether the gradient of the current iteration will be recorded"""
        self.channel = state.cluster
        """the connections that planning uses; they are separate, because earlier iterations are
        trained at the same time"""
        if self.talks_to_plan:
            self.channel = state.cluster.second_channel()
            self.channel.traffic = state.cluster.traffic.apart()

    @property
    def reads_ahead(self) -> bool:
        """Return whether :meth:`read` reads all rows of other servers that the iteration needs."""
        return self.reads_remote_rows

    @property
    def talks_to_plan(self) -> bool:
        """Return whether ranks talk to each other while they plan, for the engine or to request
        learnable rows."""
        return self.plans_together or bool(self.state.learnable)

    @classmethod
    def check(cls, request: Request) -> None:
        """Refuse a request that this engine cannot train. Most engines train any request.

        Raises
        ------
        RequestError: the message names the key, the expected value and the given value.
        """

    @classmethod
    def schedule_options(cls, config: Config) -> Mapping[str, Any]:
        """Return the keyword arguments that only this engine's :attr:`schedule` takes."""
        return {}

    @classmethod
    def is_exact(cls, config: Config) -> bool:
        """Return whether the engine is exact under a configuration."""
        return cls.exact and not cls.rounds(config)

    @classmethod
    def rounds(cls, config: Config) -> bool:
        """Return whether the engine rounds values on purpose, which makes gradients approximate."""
        rounds_rows = cls.reads_remote_rows and config.cluster.feature_wire != "stored"
        return config.train.autocast != "off" or rounds_rows

    def train_step(self, batch: GlobalBatch) -> StepReport:
        """Plan, read and train one global batch, one step after the other."""
        plan, rows = self.plan_and_ask(batch), self.state.rows
        with rows.one_operation():
            inputs = self.read(plan, rows)
        return self.train(plan, inputs)

    def train(self, plan: PlanT, inputs: InputsT) -> StepReport:
        """Train a plan on the rows that were read, and update every model of :attr:`training`."""
        self.state.cluster.traffic.add(plan.sent)
        self.state.packed.clear()
        self.fetch_learnable(plan)
        if self.has_one_backward(plan):
            self.fetched.push_early()
        self.compute(plan, inputs)
        return self.update(plan.batch)

    @abstractmethod
    def plan(self, batch: GlobalBatch) -> PlanT:
        """Decide what this rank does for a batch.

        The plan covers sampling and routing, and depends on the batch alone. Another thread may
        call this method while earlier batches are read and trained. Every rank must call it,
        because ranks may talk to each other over :attr:`channel`.
        """

    def plan_and_ask(self, batch: GlobalBatch) -> PlanT:
        """Make a plan, and tell the owners of learnable rows which ranks read them.

        The rows to read are known long before their values are.
        """
        plan = self._plan_and_count(batch)
        if not self.state.learnable:
            return plan
        with self._learnable_stage("sample"):
            asked = self.state.learnable.ask(plan.reads, batch.where, self.channel)
        taken = self.channel.traffic.take()
        return replace(plan, asked=asked, sent=_sum(plan.sent, taken))

    def _plan_and_count(self, batch: GlobalBatch) -> PlanT:
        """Make a plan, and add the bytes of draws that other servers made for it."""
        elsewhere = [model.trainer.sampler.elsewhere for model in self.models]
        # Several models may share a sampler, whose bytes count once.
        distinct = list(dict.fromkeys(draws for draws in elsewhere if draws is not None))
        for draws in distinct:
            # Bytes of earlier plans that were never trained do not belong to this plan.
            draws.take_sent()
        plan = self.plan(batch)
        for draws in distinct:
            plan = replace(plan, sent=_sum(plan.sent, draws.take_sent()))
        return plan

    @abstractmethod
    def read(self, plan: PlanT, rows: PartitionedRows) -> InputsT:
        """Read the input rows of a plan: local, cached and remote ones.

        Learnable rows are read later, because earlier updates still change them. Another thread
        may call this method while earlier batches are trained.

        Parameters
        ----------
        rows: the source of the rows. They may be read from it as late as in :meth:`compute`.
        """

    @abstractmethod
    def compute(self, plan: PlanT, inputs: InputsT) -> None:
        """Add the gradient and the loss of this rank's part to the flat model."""

    def has_one_backward(self, plan: PlanT) -> bool:
        """Return whether :meth:`compute` makes all gradients of learnable rows in one backward
        pass.

        They can then be sent during that pass.
        """
        return False

    def can_plan_ahead(self, epoch: int) -> bool:
        """Return whether an epoch can be planned before the previous epoch has ended."""
        return True

    @classmethod
    def plan_key(cls, config: Config) -> list[Any]:
        """Return what plans depend on besides graph, model depth, sampler and schedule.

        Engines with equal keys read the same rows.
        """
        return [cls.name]

    def close(self) -> None:
        """Close connections. Every rank must call it, and the engine does not train afterwards."""
        if self.talks_to_plan:
            self.channel.close()
        self.state.learnable.close()

    def fetch_learnable(self, plan: PlanT) -> None:
        """Begin to read the learnable rows of a plan, if it has any. Every rank must call it."""
        with self._learnable_stage("gather"):
            self.fetched = self.state.learnable.fetch(
                plan.asked, plan.batch.where, waiting=lambda: self._learnable_stage("gather")
            )
        self.state.trainer.learned = self.fetched

    def _learnable_stage(self, stage: Stage) -> AbstractContextManager[object]:
        """Time work on learnable rows, if there are any."""
        if not self.state.learnable:
            return nullcontext()
        return self.state.log.stage(stage, operation="learnable rows")

    def sum_gradients(self, operation: str) -> None:
        """Sum gradients and loss over ranks, except for parameters that only one server uses."""
        self.homes.sum_gradients(operation)

    def parameter_squares(self, operation: str) -> float:
        """Return the sum of squares of all parameters' gradients, bit for bit equal on all ranks.

        Ranks with different numbers of threads would add in different orders, so one rank's sum is
        used by all.
        """
        return self.homes.squares(operation)

    def complete_recorded(self, where: str) -> None:
        """Complete parameters and gradients on every rank before they are recorded."""
        packed = self.state.packed
        self.homes.complete([packed.parameters, packed.gradients], f"recording, {where}")

    def complete(self, where: str, *, moments: bool = False) -> None:
        """Complete the parameters, and the optimiser's state, on every rank.

        Every rank must call it before they are saved. Most engines keep all of it everywhere.

        Parameters
        ----------
        moments: whether all models are saved with their optimisers' states, as in a checkpoint.
            Otherwise the one model that was handed out for scoring is saved without.
        """
        parameters = self.state.packed.parameters
        tensors = [parameters]
        if moments:
            state = self.state.optimizer.state().values()
            tensors += [tensor for tensor in state if tensor.shape == parameters.shape]
        self.homes.complete(tensors, f"completing the model, {where}")

    def hand_out(self, model: int) -> None:
        """Give every rank the parameters of a model that will be scored.

        Every rank must call it. Most engines keep all parameters everywhere.
        """

    def _synchronise(self, where: str) -> tuple[float, Tensor]:
        """Sum gradients and loss over ranks.

        Returns
        -------
        The loss, and the total of this rank's own part of the sums, which is finite if all are.
        """
        state, packed = self.state, self.state.packed
        with state.log.stage("sync"):
            own = packed.accumulated.sum()
            self.sum_gradients(f"summing gradients, {where}")
            loss = float(packed.loss)
            with self._learnable_stage("sync"):
                self.fetched.push(packed.scale.factor)
        packed.unscale()
        if self.records:
            self.complete_recorded(where)
        return loss, own

    def _is_finite(self, where: str) -> bool:
        """Return whether loss and gradients, summed over ranks, are finite; the same everywhere."""
        packed, cluster = self.state.packed, self.state.cluster
        is_finite = packed.is_finite() and self.fetched.is_finite()
        if self.homes.numbers_apart or self.state.learnable:
            # Not every rank has all sums.
            faults = torch.tensor([int(not is_finite)])
            cluster.all_reduce(faults, "control", f"looking for what is not finite, {where}")
            is_finite = not int(faults)
        return is_finite

    def update(self, batch: GlobalBatch) -> StepReport:
        """Sum gradients and loss over ranks, then update parameters and learnable rows.

        Nothing is updated if the sums are not finite.
        """
        state, where = self.state, batch.where
        if state.cluster.device.type == "cuda":
            # Kernels that still run count as computing, not as waiting for other ranks.
            with state.log.stage("compute", operation="finish"):
                torch.cuda.current_stream(state.cluster.device).synchronize()
        with self._learnable_stage("sync"):
            # Their gradients travel while this rank waits and while dense gradients are summed.
            self.fetched.start_push()
        with state.log.stage("wait", operation="sync"):
            state.cluster.arrive(f"waiting for all ranks to finish their roots, {where}")
        loss, own = self._synchronise(where)
        packed, train = state.packed, state.config.train
        for callback in self.on_gradient:
            callback(batch, packed)
        if not self._is_finite(where):
            own_is_finite = bool(own.isfinite()) and self.fetched.own_is_finite()
            reason = leave_out(state.cluster, packed, loss, own_is_finite, where)
            return StepReport({0: loss}, {0: math.nan} if train.reports_norms else {}, {0: reason})
        packed.scale.update(is_finite=True)
        squares: float | None = None
        if train.reports_norms:
            with state.log.stage("sync", operation="gradient norm"):
                squares = self.parameter_squares(f"the norm of gradients, {where}")
                squares += self.fetched.squares(f"the norm of learnable rows, {where}")
        factor = state.optimizer.pace.factor_at(batch.epoch, batch.iteration)
        with state.log.stage("compute", operation="update", rate_factor=factor):
            scale = state.optimizer.step(train.clip_norm, squares, factor)
            with self._learnable_stage("compute"):
                self.fetched.step(scale, factor)
        return StepReport({0: loss}, {} if squares is None else {0: math.sqrt(squares)})


def _sum(first: Mapping[Cause, int], second: Mapping[Cause, int]) -> dict[Cause, int]:
    """Add up two counts of bytes by cause."""
    return {cause: first.get(cause, 0) + second.get(cause, 0) for cause in {**first, **second}}
