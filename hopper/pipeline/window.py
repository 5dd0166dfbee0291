"""The plans of the iterations that will be read after the one that is."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from hopper.engines.engine import Engine, Plan
from hopper.hetero.learnable import distinct_by_table
from hopper.pipeline.hand_over import HandOver, Pause
from hopper.pipeline.lookahead import Ids, Lookahead

_About = TypeVar("_About")


class Window(Generic[_About]):
    """Hands plans out in their order, and lets rows be kept that the following ones read too.

    Parameters
    ----------
    planned: plans, each with something about it.
    """

    def __init__(self, engine: Engine[Any, Any], planned: HandOver[tuple[Plan, _About]]) -> None:
        self._state, self._planned = engine.state, planned
        has_others = engine.reads_ahead and self._state.rows.remote is not None
        self._reach = self._state.config.pipeline.lookahead if has_others else 0
        self._waiting: deque[tuple[Plan, _About]] = deque()
        self._ahead: Lookahead | None = None

    def take(self) -> tuple[Plan, _About]:
        """The next plan, once those after it are known.

        Raises
        ------
        As :meth:`HandOver.take`.
        """
        come: list[Plan] = []
        try:
            while len(self._waiting) <= self._reach:
                found = self._planned.take(has_others=bool(self._waiting))
                self._waiting.append(found)
                come.append(found[0])
        except Pause:
            pass
        if self._reach:
            self._foresee([self._remote(plan) for plan in come])
        return self._waiting.popleft()

    def turn(self) -> AbstractContextManager[None]:
        """Within it the plan that was taken is read."""
        return nullcontext() if self._ahead is None else self._ahead.turn()

    def _foresee(self, reads: list[Mapping[str, Ids]]) -> None:
        if self._ahead is None:
            rows, nbytes = self._state.rows, self._state.config.pipeline.lookahead_nbytes
            self._ahead = Lookahead.make(rows.graph, reads, nbytes)
            rows.keep_for_later(self._ahead.kept)
        for each in reads:
            self._ahead.foresee(each)

    def _remote(self, plan: Plan) -> Mapping[str, Ids]:
        """By table of features, the rows of other servers that a plan reads and no cache has for
        good."""
        rows, stored = self._state.rows, self._state.request.reads.feature_tables
        return {
            node_type: rows.not_kept(node_type, nodes[~rows.is_local(node_type, nodes)])
            for node_type, nodes in distinct_by_table(plan.reads, stored).items()
        }
