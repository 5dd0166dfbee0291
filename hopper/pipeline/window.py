"""The plans of coming iterations, whose reads decide which rows are kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from hopper.engines import Plan, TrainStep
from hopper.hetero.learnable import distinct_by_table
from hopper.pipeline.hand_over import HandOver, Pause
from hopper.pipeline.lookahead import Ids, Lookahead

_About = TypeVar("_About")


class Window(Generic[_About]):
    """Returns plans in their order, and keeps rows that the following plans read too.

    Parameters
    ----------
    planned: queue of plans, each with further data about it.
    """

    def __init__(self, engine: TrainStep[Any, Any], planned: HandOver[tuple[Plan, _About]]) -> None:
        self._state, self._planned = engine.state, planned
        has_others = self._state.rows.remote is not None
        self._reach = self._state.config.pipeline.lookahead if has_others else 0
        self._waiting: deque[tuple[Plan, _About]] = deque()
        self._ahead: Lookahead | None = None

    def take(self) -> tuple[Plan, _About]:
        """Return the next plan, after as many following ones as the window has are known.

        Raises
        ------
        As :meth:`HandOver.take`.
        """
        new_plans: list[Plan] = []
        try:
            while len(self._waiting) <= self._reach:
                item = self._planned.take(has_others=bool(self._waiting))
                if not item[0].reads_ahead:
                    self._reach = 0
                self._waiting.append(item)
                new_plans.append(item[0])
        except Pause:
            pass
        if self._reach:
            self._foresee([self._remote_reads(plan) for plan in new_plans])
        return self._waiting.popleft()

    def turn(self) -> AbstractContextManager[None]:
        """Let the rows of the plan that was taken last be read during the block."""
        return nullcontext() if self._ahead is None else self._ahead.turn()

    def _foresee(self, reads: list[Mapping[str, Ids]]) -> None:
        if self._ahead is None:
            rows, nbytes = self._state.rows, self._state.config.pipeline.lookahead_nbytes
            self._ahead = Lookahead.make(rows.graph, reads, nbytes)
            rows.attach_prefetch(self._ahead.kept)
        for plan_reads in reads:
            self._ahead.foresee(plan_reads)

    def _remote_reads(self, plan: Plan) -> Mapping[str, Ids]:
        """Return, by feature table, the remote rows of a plan that no cache holds permanently."""
        rows, tables = self._state.rows, self._state.request.reads.feature_tables
        return {
            table: rows.uncached(table, nodes[~rows.is_local(table, nodes)])
            for table, nodes in distinct_by_table(plan.reads, tables).items()
        }
