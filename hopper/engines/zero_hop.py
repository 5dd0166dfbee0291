"""Zero-hop training: every root is trained on its home rank, and no model travels.

With synchronous replicas the global gradient is a sum over roots, so any replica may train a root.
Rows move as under ``hop``, without its migrations, time steps and barriers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.config import Config
from hopper.engines.sampled_groups import OneGroup
from hopper.micrograph.route import GlobalBatch

HOMED: Final = "homed"
"""the key of plans in which a rank reads for the roots that it owns"""


class ZeroHop(OneGroup):
    """Each rank trains all roots of the global batch whose home it is.

    Few remote input rows and gradients cross the network. Unlike under ``locality``, the global
    batch is drawn uniformly from all training nodes.
    """

    name = "zero_hop"

    @classmethod
    def plan_key(cls, config: Config) -> list[Any]:
        """Return the key that all engines share whose ranks read for their own roots."""
        return [HOMED]

    def choose_roots(self, batch: GlobalBatch) -> NDArray[np.int64]:
        """Return the roots whose home is this rank."""
        return batch.of_home(self.state.cluster.rank)
