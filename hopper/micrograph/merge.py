"""The time steps of an iteration, and what each model trains in them (HopGNN, section 5.3).

Without merging there are N steps, and at step t model d trains its roots of home rank (d + t) mod
N. Merging dissolves steps: the roots of a dissolved step are spread over the remaining steps of the
same model, which trains them away from their home. Every rank derives the same steps from the
global batch alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.counter import MERGING, below, key_of, variate
from hopper.micrograph.route import GlobalBatch

Selection = Literal["fewest", "random"]


@dataclass(frozen=True)
class TimeSteps:
    """The time steps of one iteration."""

    ranks: NDArray[np.int64]
    """[models, steps] int64, the rank on which each model trains at each step"""
    groups: list[list[NDArray[np.int64]]]
    """``groups[model][step]`` is [roots] int64, the global ids that the model trains there"""

    @property
    def count(self) -> int:
        """The number of time steps."""
        return int(self.ranks.shape[1])


def make_time_steps(
    batch: GlobalBatch,
    ranks: int,
    dissolve: int = 0,
    selection: Selection = "fewest",
    seed: int = 0,
) -> TimeSteps:
    """Make the time steps of one iteration.

    Parameters
    ----------
    ranks: number of ranks N, which is also the number of models.
    dissolve: how many of the N steps to dissolve, at most N - 1.
    selection: ``fewest`` dissolves the step with the fewest roots, the same for all models, and
        counts anew for the next. Models stay on distinct ranks. ``random`` draws a step for each
        model (the comparison of section 7.4). Several models may then train on one rank.
    seed: seed of the draws of ``random``, which also depend on the epoch and iteration.

    Raises
    ------
    ValueError: ``dissolve`` is not in [0, N).
    """
    if not 0 <= dissolve < ranks:
        raise ValueError(f"dissolve: expected 0 to {ranks - 1} of {ranks} steps, got {dissolve}")
    models, moment = range(ranks), (batch.epoch, batch.iteration)
    remaining = [
        {step: batch.group(model, (model + step) % ranks) for step in range(ranks)}
        for model in models
    ]
    for round_index in range(dissolve):
        if selection == "fewest":
            sizes = {step: sum(roots[step].size for roots in remaining) for step in remaining[0]}
            dissolved = [min(sizes, key=lambda step: (sizes[step], step))] * ranks
        else:
            # One of the remaining steps for each model, independently of other models.
            key, dissolved = np.uint64(key_of(MERGING, seed, *moment, round_index)), []
            for model, groups in enumerate(remaining):
                drawn = below(np.uint64(variate(key, np.uint64(model))), np.uint64(len(groups)))
                dissolved.append(list(groups)[int(drawn)])
        for groups, step in zip(remaining, dissolved, strict=True):
            # A dissolved step's roots are spread evenly; the first steps may get one more.
            parts = np.array_split(groups.pop(step), len(groups))
            for left, part in zip(groups, parts, strict=True):
                if part.size:
                    groups[left] = np.concatenate((groups[left], part))
    return TimeSteps(
        ranks=np.array([[(m + step) % ranks for step in remaining[m]] for m in models], np.int64),
        groups=[list(roots.values()) for roots in remaining],
    )
