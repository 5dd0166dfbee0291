"""The plans of the iterations that will be read after the one that is."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

import numpy as np

from hopper.engines.engine import Engine, Plan
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
        has_others = engine.reads_remote_rows and self._state.rows.remote is not None
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
        """By node type with features, the nodes of other servers that a plan reads."""
        groups: dict[str, list[Ids]] = {}
        for name, own in plan.reads.items():
            rows = self._state.request.reads.inputs[name]
            if rows.features:
                groups.setdefault(rows.node_type, []).extend(own)
        found = {}
        for node_type, own in groups.items():
            nodes = np.unique(np.concatenate(own)) if own else np.empty(0, np.int64)
            found[node_type] = nodes[~self._state.rows.is_local(node_type, nodes)]
        return found
