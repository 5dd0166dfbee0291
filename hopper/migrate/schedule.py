"""Which models a rank trains at which time step, and how they move (HopGNN, section 5.1).

Pure functions: every rank derives its own part from where each model trains at each step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Move(NamedTuple):
    """One model on its way."""

    model: int
    rank: int
    """the other end: where it comes from, or where it goes"""


class Visit(NamedTuple):
    """What one rank does in one time step."""

    step: int
    arrivals: tuple[Move, ...]
    """models that come from other ranks before the step"""
    models: tuple[int, ...]
    """models to train, in this order; none is ordinary, several wait for each other"""
    departures: tuple[Move, ...]
    """models that go to other ranks after the step"""


def visits(ranks: NDArray[np.int64], rank: int) -> list[Visit]:
    """The time steps of one iteration as ``rank`` lives them, in order.

    Parameters
    ----------
    ranks: [models, steps] int64, where each model trains at each step.
    """
    timeline = []
    last = ranks.shape[1] - 1
    for step in range(last + 1):
        here = [int(model) for model in np.flatnonzero(ranks[:, step] == rank)]
        before, after = ranks[here, max(0, step - 1)], ranks[here, min(last, step + 1)]
        timeline.append(
            Visit(
                step=step,
                arrivals=_moves(here, before, rank),
                models=tuple(here),
                departures=_moves(here, after, rank),
            )
        )
    return timeline


def _moves(models: list[int], others: NDArray[np.int64], rank: int) -> tuple[Move, ...]:
    pairs = zip(models, others.tolist(), strict=True)
    return tuple(Move(model, other) for model, other in pairs if other != rank)
