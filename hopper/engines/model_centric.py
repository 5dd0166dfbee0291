"""Model-centric training: features travel to the model (DGL, as HopGNN compares it)."""

from __future__ import annotations

from hopper.engines.engine import Engine, StepReport
from hopper.micrograph.route import GlobalBatch


class ModelCentric(Engine):
    """Each rank trains its own mini-batch, drawn at random over all roots.

    What moves: the remote input rows of the rank's whole subgraph, each once, and gradients.
    """

    name = "model_centric"

    def train_step(self, batch: GlobalBatch) -> StepReport:
        """See :class:`Engine`."""
        self.state.packed.clear()
        self.train_roots(batch.of_model(self.state.cluster.rank), batch)
        return self.synchronise_and_update(batch)
