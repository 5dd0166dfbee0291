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
        state = self.state
        state.packed.clear()
        roots = batch.of_model(state.cluster.rank)
        subgraphs = state.trainer.sample(roots, batch.epoch, batch.iteration)
        state.trainer.accumulate(state.packed, subgraphs, state.rows, batch.size)
        return self.synchronise_and_update(batch)
