"""Model-centric training: features travel to the model (DGL, as HopGNN compares it)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopper.engines.sampled_groups import OneGroup
from hopper.micrograph.route import GlobalBatch


class ModelCentric(OneGroup):
    """Each rank trains its own mini-batch, drawn at random over all roots.

    What moves: the remote input rows of the rank's whole subgraph, each once, and gradients.
    """

    name = "model_centric"
    is_baseline = True

    def roots_of(self, batch: GlobalBatch) -> NDArray[np.int64]:
        """See :class:`OneGroup`."""
        return batch.of_model(self.state.cluster.rank)
