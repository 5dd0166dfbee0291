"""Model-centric training: features travel to the model, as in DGL, HopGNN's baseline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hopper.engines.data_parallel import DataParallelEngine
from hopper.engines.engine import Spec
from hopper.micrograph.route import GlobalBatch, LocalRootSchedule


class ModelCentric(DataParallelEngine):
    """Each rank trains a mini-batch that is drawn at random from all roots."""

    spec = Spec("model_centric", predicts_links=True)

    def choose_roots(self, batch: GlobalBatch) -> NDArray[np.int64]:
        """Return the roots of this rank's mini-batch."""
        return batch.of_model(self.state.cluster.rank)


class Locality(ModelCentric):
    """Draws each rank's mini-batches from its own roots only ("LO" in HopGNN, section 5.1).

    It is fast and biased: each rank sees the same community all the time. On its own batches, which
    :class:`hopper.micrograph.route.LocalRootSchedule` deals, its gradient is exact.
    """

    spec = replace(
        ModelCentric.spec,
        name="locality",
        schedule=LocalRootSchedule,
        biased="each rank draws its mini-batches from its own roots only",
    )
