"""Which models a rank trains at which time step, and how they move (HopGNN, section 5.1).

Pure functions: every rank derives its own part from where each model trains at each step.
"""

from __future__ import annotations

from collections.abc import Collection
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


def round_trips(models: int, ranks: int, travelling: Collection[int]) -> NDArray[np.int64]:
    """Where independent models train: each starts at home, meets every rank and comes home.

    Parameters
    ----------
    models, ranks: M and N, unrelated; model d is at home on rank d mod N.
    travelling: the models that do; the others are nowhere, which is -1.

    Returns
    -------
    [M, N + 1] int64: model d is on rank (d + t) mod N at time step t; at the last step it is back
    home, where nothing is left to train.
    """
    places = (np.arange(models)[:, None] + np.arange(ranks + 1)) % ranks
    places[~np.isin(np.arange(models), list(travelling))] = -1
    return places


def there_and_back(ranks: int) -> NDArray[np.int64]:
    """Where models are that make the round of all ranks twice, from home and in the end home again:
    once one way and once the other.

    Returns
    -------
    [N, 2 N + 1] int64: model d is on rank (d + t) mod N up to time step N, and then on rank
    (d - t) mod N.
    """
    home = np.arange(ranks)[:, None]
    there, back = np.arange(ranks + 1), np.arange(1, ranks + 1)
    return np.concatenate([(home + there) % ranks, (home - back) % ranks], axis=1)


def _moves(models: list[int], others: NDArray[np.int64], rank: int) -> tuple[Move, ...]:
    pairs = zip(models, others.tolist(), strict=True)
    return tuple(Move(model, other) for model, other in pairs if other != rank)
