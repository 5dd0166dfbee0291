"""The learnable rows of an iteration, from the plan that reads them to their update."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from hopper.engines.engine import PlanT, TrainState
from hopper.hetero.learnable import FetchedRows
from hopper.timing.run_log import Stage


class SparseStep:
    """Tells owners with the plan which rows are read, and fetches these when compute is due.

    Gradients are pushed to the owners during the backward pass or after it, and owners update their
    rows. Without learnable rows nothing is sent.

    Attributes
    ----------
    fetched: the rows of the current iteration.
    """

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self.fetched = FetchedRows(state.cluster, [], {}, "")

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
        with self.stage("gather"):
            self.fetched = state.learnable.fetch(
                plan.asked, plan.batch.where, waiting=lambda: self.stage("gather")
            )
        state.trainer.learned = self.fetched
        if plan.one_backward:
            self.fetched.push_early()

    def stage(self, stage: Stage) -> AbstractContextManager[object]:
        """Time work on learnable rows, if there are any."""
        if not self._state.learnable:
            return nullcontext()
        return self._state.log.stage(stage, operation="learnable rows")
