"""What a rank's training has done since its process was started, for whoever looks on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from hopper.features.cached import Lookups

RESTARTS: Final = "HOPPER_RESTARTS"
"""variable: how many times the launcher has started the run again"""
_OF_TORCHRUN: Final = "TORCHELASTIC_RESTART_COUNT"


@dataclass
class RunProgress:
    """Written by the thread that trains and read by others, so whatever changes is replaced.

    Attributes
    ----------
    epoch, iteration: the next iteration that will be trained.
    roots: of the global batches that were trained.
    losses: of the last iteration, by the number of the model.
    iteration_seconds: of the last iteration.
    lookups: by node type or table, rows that were looked for in a cache.
    resumed_step: of the checkpoint that training went on from; 0 = it began anew.
    restarts: how many times the run was started again.
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
        """Count rows that were looked for."""
        self.lookups = add_lookups(self.lookups, lookups)


def add_lookups(before: Mapping[str, Lookups], more: Mapping[str, Lookups]) -> dict[str, Lookups]:
    """The sums, by name; names that come anew stand last."""
    found = dict(before)
    for name, each in more.items():
        found[name] = found.get(name, Lookups()).plus(each)
    return found
