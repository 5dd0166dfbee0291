"""Zero-hop training: every root is trained on its home, and only gradients travel.

With synchronous replicas the global gradient is a sum over roots, so each root may be trained under
any replica. This is hop's data movement without its migrations, time steps and barriers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.config import Config
from hopper.engines.sampled_groups import OneGroup
from hopper.micrograph.route import GlobalBatch

HOMED: Final = "homed"
"""what plans are told apart by where a rank reads for the roots that it owns"""


class ZeroHop(OneGroup):
    """Each rank trains all roots of the global batch that are homed at it.

    What moves: few remote input rows, and gradients. Unlike ``locality``, the global batch is drawn
    uniformly from all training nodes.
    """

    name = "zero_hop"

    @classmethod
    def plan_key(cls, config: Config) -> list[Any]:
        """See :class:`hopper.engines.engine.Engine`."""
        return [HOMED]

    def roots_of(self, batch: GlobalBatch) -> NDArray[np.int64]:
        """See :class:`OneGroup`."""
        return batch.of_home(self.state.cluster.rank)
