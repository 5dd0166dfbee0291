"""Model-centric training: features travel to the model, as in DGL, HopGNN's baseline."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopper.engines.sampled_groups import OneGroup
from hopper.micrograph.route import GlobalBatch


class ModelCentric(OneGroup):
    """Each rank trains a mini-batch that is drawn at random from all roots.

    The remote input rows of its subgraph, each once, and gradients cross the network.
    """

    name = "model_centric"
    is_baseline = True

    def choose_roots(self, batch: GlobalBatch) -> NDArray[np.int64]:
        """Return the roots of this rank's mini-batch."""
        return batch.of_model(self.state.cluster.rank)
