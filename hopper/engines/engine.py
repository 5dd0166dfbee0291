"""What every engine is, and the state that all of them train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.engines.accumulate import GroupTrainer, overflowed
from hopper.engines.optimizer import Optimizer
from hopper.features import FeatureSource, PartitionedRows
from hopper.hetero.learnable import LearnableRows
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.packed_model import PackedModel
from hopper.partition.layouts import Layout, Replicated
from hopper.run_log import RunLog


@dataclass
class TrainState:
    """What one rank trains, and with what."""

    config: Config
    cluster: Cluster
    log: RunLog
    rows: PartitionedRows
    packed: PackedModel
    optimizer: Optimizer
    trainer: GroupTrainer
    learnable: LearnableRows | None = None


@dataclass(frozen=True)
class StepReport:
    """One iteration, as every rank knows it.

    loss: sum of root losses divided by the size of the global batch.
    """

    loss: float


class Engine(ABC):
    """A way for the work to meet the data.

    Engines that are ``exact`` compute the single-process gradient on the same roots and draws
    (design.md, invariant 2); they differ in what crosses the network.
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = True
    layouts: ClassVar[tuple[type[Layout], ...]] = (Replicated,)
    """of the graphs that it can train"""

    def __init__(self, state: TrainState) -> None:
        self.state = state
        self.on_gradient: Callable[[GlobalBatch, PackedModel], None] | None = None
        """called after synchronisation, before the update, with gradient and loss in place"""
        self.replayed: Mapping[str, Any] = {}
        """decisions of the epoch in another run, to be taken again instead of anew"""
        self.records = False
        """whether the gradient of the iteration under way will be recorded"""
        self.upcoming: GlobalBatch | None = None
        """the batch after the one that is trained, if the epoch has one; may be prepared"""

    @classmethod
    def is_exact(cls, config: Config) -> bool:
        """Whether it is, configured so."""
        return cls.exact and not cls.rounds(config)

    @classmethod
    def rounds(cls, config: Config) -> bool:
        """Whether values are rounded on purpose, so that gradients are near the exact ones."""
        return config.train.autocast != "off"

    @abstractmethod
    def train_step(self, batch: GlobalBatch) -> StepReport:
        """Train one global batch and update the parameters on every rank."""

    def close(self) -> None:  # noqa: B027  # most engines hold nothing
        """Let go of threads and connections; the engine does not train again."""

    def decisions(self) -> dict[str, Any]:
        """What was decided for the epoch under way; recorded, so that it can be replayed."""
        return {}

    def epoch_ended(self, seconds: float) -> None:  # noqa: B027  # most engines decide nothing
        """Take note of an epoch's time: the maximum over ranks, the same number on all of them."""

    def decision_state(self) -> dict[str, Any]:
        """What the next decisions depend on, as JSON (for checkpoints)."""
        return {}

    def restore_decisions(self, state: Mapping[str, Any]) -> None:  # noqa: B027  # as above
        """Go on from what :meth:`decision_state` returned."""

    def fetched_once(self, subgraphs: Sequence[Subgraph]) -> FeatureSource:
        """Rows for several passes: remote ones are fetched now, each once for all of them."""
        return self.state.trainer.fetched_once(self.state.rows, subgraphs)

    def train_roots(self, roots: NDArray[np.int64], batch: GlobalBatch) -> None:
        """Sample, gather and train roots under this rank's replica; none is ordinary."""
        state = self.state
        subgraphs = state.trainer.sample(roots, batch.epoch, batch.iteration)
        self.fetch_learnable(subgraphs, batch)
        rows = self.fetched_once(subgraphs) if len(subgraphs) > 1 else state.rows
        state.trainer.accumulate(state.packed, subgraphs, rows, batch.size)

    def fetch_learnable(self, subgraphs: Sequence[Subgraph], batch: GlobalBatch) -> None:
        """Read the learnable rows of an iteration's groups, if there are any; collective."""
        if self.state.learnable is not None:
            types = self.state.trainer.tables
            wanted = {name: [subgraph.nodes[name] for subgraph in subgraphs] for name in types}
            self.fetch_learnable_rows(wanted, batch)

    def fetch_learnable_rows(
        self, wanted: Mapping[str, Sequence[NDArray[np.int64]]], batch: GlobalBatch
    ) -> None:
        """Read the learnable rows of some nodes by type, in any number of groups; collective."""
        state = self.state
        assert state.learnable is not None
        where = f"epoch {batch.epoch}, iteration {batch.iteration}"
        with state.log.stage("gather", operation="learnable rows"):
            state.trainer.learned = state.learnable.fetch(wanted, where)

    def sum_gradients(self, operation: str) -> None:
        """Add gradients and loss up over ranks."""
        state = self.state
        state.cluster.all_reduce(state.packed.accumulated, "gradient", operation)

    def parameter_squares(self, operation: str) -> float:
        """The sum of squares of all parameters' gradients, to the same bits on every rank: with
        another number of threads a rank adds up in another order, so one's sum is everyone's."""
        state = self.state
        total = state.packed.gradients.square().sum().double().reshape(1)
        if state.cluster.rank:
            total.zero_()
        state.cluster.all_reduce(total, "control", operation)
        return float(total)

    def complete_recorded(self, where: str) -> None:  # noqa: B027  # as below
        """Make parameters and gradients whole on every rank, where they will be recorded."""

    def complete(self, where: str, *, moments: bool = False) -> None:  # noqa: B027  # see below
        """Make parameters, and the optimiser's state, whole on every rank; every rank has to call
        it before they are saved. Most engines keep all of it everywhere."""

    def _unscale(self, where: str) -> None:
        """Let gradients be those of the loss; every rank learns whether any rank's overflowed."""
        state = self.state
        is_finite = state.trainer.unscale(state.packed)
        if state.learnable is not None:
            is_finite = state.learnable.is_finite() and is_finite
        broken = torch.tensor([int(not is_finite)])
        state.cluster.all_reduce(broken, "control", f"looking for overflows, {where}")
        if int(broken):
            raise overflowed(where)

    def synchronise_and_update(self, batch: GlobalBatch) -> StepReport:
        """Sum gradients and loss over ranks, then update what every rank holds."""
        state = self.state
        where = f"epoch {batch.epoch}, iteration {batch.iteration}"
        if state.cluster.device.type == "cuda":
            # What was launched is computing, not waiting for others.
            with state.log.stage("compute", operation="finish"):
                torch.cuda.current_stream(state.cluster.device).synchronize()
        with state.log.stage("wait", operation="sync"):
            state.cluster.arrive(f"waiting for all ranks to finish their roots, {where}")
        with state.log.stage("sync"):
            self.sum_gradients(f"summing gradients, {where}")
            loss = float(state.packed.loss)
            if state.learnable is not None:
                assert state.trainer.learned is not None
                with state.log.stage("sync", operation="learnable rows"):
                    state.learnable.push(state.trainer.learned, where, state.trainer.scale)
        if state.trainer.scale != 1.0:
            self._unscale(where)
        if self.records:
            self.complete_recorded(where)
        if self.on_gradient is not None:
            self.on_gradient(batch, state.packed)
        clip = state.config.train.clip_norm
        squares: float | None = None
        if clip:
            with state.log.stage("sync", operation="gradient norm"):
                squares = self.parameter_squares(f"the norm of gradients, {where}")
                if state.learnable is not None:
                    squares += state.learnable.squares(f"the norm of learnable rows, {where}")
        factor = state.optimizer.pace.factor_at(batch.epoch, batch.iteration)
        with state.log.stage("compute", operation="update", rate_factor=factor):
            scale = state.optimizer.step(clip, squares, factor)
            if state.learnable is not None:
                with state.log.stage("compute", operation="learnable rows"):
                    state.learnable.step(scale, factor)
        return StepReport(loss=loss)
