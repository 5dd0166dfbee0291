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


def round_trips(models: int, ranks: int, travelling: Collection[int]) -> NDArray[np.int64]:
    """Return where independent models are: each starts at home, visits every rank and returns.

    Parameters
    ----------
    models, ranks: M and N, which are independent. Model d's home is rank d mod N.
    travelling: the models that travel; the others are on rank -1, which is none.

    Returns
    -------
    [M, N + 1] int64: model d is on rank (d + t) mod N at time step t. At the last step it is home
    again, where nothing is left to train.
    """
    places = (np.arange(models)[:, None] + np.arange(ranks + 1)) % ranks
    places[~np.isin(np.arange(models), list(travelling))] = -1
    return places


def _moves(models: list[int], ranks: NDArray[np.int64], rank: int) -> tuple[Move, ...]:
    pairs = zip(models, ranks.tolist(), strict=True)
    return tuple(Move(model, other_rank) for model, other_rank in pairs if other_rank != rank)
