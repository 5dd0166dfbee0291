"""The progress of a rank since its process started, for metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from hopper.features.cached import Lookups

RESTARTS: Final = "HOPPER_RESTARTS"
"""Environment variable: how many times the launcher has restarted the run."""
_OF_TORCHRUN: Final = "TORCHELASTIC_RESTART_COUNT"


@dataclass
class RunProgress:
    """The progress of a rank's training.

    One thread trains and other threads read, so values are replaced and never changed in place.

    Attributes
    ----------
    epoch, iteration: the next iteration that will be trained.
    roots: number of roots of all global batches that were trained.
    losses: by number of the model, its loss in the last iteration.
    iteration_seconds: seconds of the last iteration.
    lookups: by node type or table, lookups of rows in a cache.
    resumed_step: the step of the checkpoint that training continued from; 0 = none.
    restarts: how many times the run was restarted.
    """

    epoch: int = 0
    iteration: int = 0
    roots: int = 0
    losses: Mapping[int, float] = field(default_factory=dict)
    iteration_seconds: float = 0.0
    lookups: Mapping[str, Lookups] = field(default_factory=dict)
    resumed_step: int = 0
    restarts: int = field(
        default_factory=lambda: sum(
            int(os.environ.get(name, 0)) for name in (RESTARTS, _OF_TORCHRUN)
        )
    )

    def add_lookups(self, lookups: Mapping[str, Lookups]) -> None:
        """Add lookups to the counts so far."""
        self.lookups = add_lookups(self.lookups, lookups)


def add_lookups(before: Mapping[str, Lookups], more: Mapping[str, Lookups]) -> dict[str, Lookups]:
    """Add lookups by name. New names come last."""
    sums = dict(before)
    for name, lookups in more.items():
        sums[name] = sums.get(name, Lookups()).plus(lookups)
    return sums
