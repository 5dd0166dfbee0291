"""The models that a rank trains at each time step, and their moves (HopGNN, section 5.1).

All functions are pure. Every rank derives its part from the ranks that all models train on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Move(NamedTuple):
    """One model that moves to or from this rank."""

    model: int
    rank: int
    """the other rank: where the model comes from, or where it goes"""


class Visit(NamedTuple):
    """One rank's work in one time step."""

    step: int
    arrivals: tuple[Move, ...]
    """models that come from other ranks before the step"""
    models: tuple[int, ...]
    """models to train, one after the other in this order; may be empty"""
    departures: tuple[Move, ...]
    """models that go to other ranks after the step"""


def visits(ranks: NDArray[np.int64], rank: int) -> list[Visit]:
    """Return what ``rank`` does in each time step of one iteration.

    ``ranks``, [models, steps] int64, says where each model trains at each step.
    """

    def moves(models: tuple[int, ...], step: int) -> tuple[Move, ...]:
        if not 0 <= step < ranks.shape[1]:
            return ()
        others = zip(models, ranks[list(models), step].tolist(), strict=True)
        return tuple(Move(model, other) for model, other in others if other != rank)

    timeline = []
    for step in range(ranks.shape[1]):
        models = tuple(np.flatnonzero(ranks[:, step] == rank).tolist())
        timeline.append(Visit(step, moves(models, step - 1), models, moves(models, step + 1)))
    return timeline


def round_trips(models: int, ranks: int, travelling: Collection[int]) -> NDArray[np.int64]:
    """Return where independent models are: each starts at home, visits every rank and returns.

    The numbers of models and ranks, M and N, are independent. Model d's home is rank d mod N.

    Returns
    -------
    [M, N + 1] int64: travelling model d is on rank (d + t) mod N at time step t. At the last step
    it is home again, where nothing is left to train. Other models are on rank -1, which is none.
    """
    places = (np.arange(models)[:, None] + np.arange(ranks + 1)) % ranks
    places[~np.isin(np.arange(models), list(travelling))] = -1
    return places
