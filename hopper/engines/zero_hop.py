"""Zero-hop training: every root is trained on its home rank, and no model travels.

With synchronous replicas the global gradient is a sum over roots, so any replica may train a root.
Rows move as under ``hop``, without its migrations, time steps and barriers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopper.engines.data_parallel import DataParallelEngine
from hopper.engines.engine import Spec
from hopper.micrograph.route import GlobalBatch

HOMED: Final = "homed"
"""the plans in which a rank reads for the roots that it owns"""


class ZeroHop(DataParallelEngine):
    """Each rank trains all roots of the global batch whose home it is.

    Unlike under ``locality``, the global batch is drawn uniformly from all training nodes.
    """

    spec = Spec("zero_hop", predicts_links=True, plans_as=HOMED)

    def choose_roots(self, batch: GlobalBatch) -> NDArray[np.int64]:
        """Return the roots whose home is this rank."""
        return batch.of_home(self.state.cluster.rank)
