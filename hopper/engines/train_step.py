"""One iteration under any engine: plan and read, then clear, compute, synchronise and update."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Generic

from hopper.cluster.traffic import Cause
from hopper.engines.engine import Engine, InputsT, PlanT
from hopper.engines.models import Models, StepReport
from hopper.engines.sparse_step import SparseStep
from hopper.features import PartitionedRows
from hopper.micrograph.route import GlobalBatch


class TrainStep(Generic[PlanT, InputsT]):
    """Trains iterations with an engine. Every rank must make the same calls.

    Planning and reading may run ahead in other threads (:mod:`hopper.pipeline`).

    Attributes
    ----------
    models: the models that are trained, by number, which make their own updates.
    sparse: the learnable rows of the iteration.
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
                sent.update(draws.take_sent())
        if self.talks_to_plan:
            sent.update(self.state.channel.traffic.take())
        return sent

    def read(self, plan: PlanT, rows: PartitionedRows) -> InputsT:
        """Read the input rows of a plan, except learnable ones."""
        return self.engine.read(plan, rows)

    def train(self, plan: PlanT, inputs: InputsT) -> StepReport:
        """Train a plan on the rows that were read, and update the models."""
        self.state.cluster.traffic.add(plan.sent)
        self.models.clear()
        self.sparse.fetch(plan)
        self.engine.compute(plan, inputs)
        return self.models.update(plan.batch)

    def close(self) -> None:
        """Close connections. Every rank must call it, and nothing is trained afterwards."""
        if self.talks_to_plan:
            self.state.channel.close()
        self.state.learnable.close()
