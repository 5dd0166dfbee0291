"""What every engine is, and the state that all of them train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.engines.accumulate import GroupTrainer
from hopper.engines.optimizer import Optimizer
from hopper.features import PartitionedRows
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.sample import NeighborSampler
from hopper.migrate.packed_model import PackedModel
from hopper.run_log import RunLog


@dataclass
class TrainState:
    """What one rank trains, and with what."""

    config: Config
    cluster: Cluster
    log: RunLog
    sampler: NeighborSampler
    rows: PartitionedRows
    packed: PackedModel
    optimizer: Optimizer
    trainer: GroupTrainer


@dataclass(frozen=True)
class StepReport:
    """One iteration, as every rank knows it.

    loss: sum of root losses divided by the size of the global batch.
    roots: size of the global batch.
    """

    loss: float
    roots: int


class Engine(ABC):
    """A way for the work to meet the data.

    Engines that are ``exact`` compute the single-process gradient on the same roots and draws
    (design.md, invariant 2); they differ in what crosses the network.
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = True

    def __init__(self, state: TrainState) -> None:
        self.state = state
        self.on_gradient: Callable[[GlobalBatch, PackedModel], None] | None = None
        """called after synchronisation, before the update, with gradient and loss in place"""

    @abstractmethod
    def train_step(self, batch: GlobalBatch) -> StepReport:
        """Train one global batch and update the parameters on every rank."""

    def synchronise_and_update(self, batch: GlobalBatch) -> StepReport:
        """Sum gradients and loss over ranks, then make the same update everywhere."""
        state = self.state
        where = f"epoch {batch.epoch}, iteration {batch.iteration}"
        with state.log.stage("wait", operation="sync"):
            state.cluster.arrive(f"waiting for all ranks to finish their roots, {where}")
        with state.log.stage("sync"):
            state.cluster.all_reduce(
                state.packed.accumulated, "gradient", f"summing gradients, {where}"
            )
            loss = float(state.packed.loss)
        if self.on_gradient is not None:
            self.on_gradient(batch, state.packed)
        with state.log.stage("compute", operation="update"):
            clip = state.config.train.clip_norm
            if clip > 0:
                nn.utils.clip_grad_norm_(state.packed.module.parameters(), clip)
            state.optimizer.step()
        return StepReport(loss=loss, roots=batch.size)
