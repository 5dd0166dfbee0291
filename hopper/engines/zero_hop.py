"""Zero-hop training: every root is trained on its home, and only gradients travel.

With synchronous replicas the global gradient is a sum over roots, so each root may be trained under
any replica. This is hop's data movement without its migrations, time steps and barriers.
"""

from __future__ import annotations

from hopper.engines.engine import Engine, StepReport
from hopper.micrograph.route import GlobalBatch


class ZeroHop(Engine):
    """Each rank trains all roots of the global batch that are homed at it.

    What moves: few remote input rows, and gradients. Unlike ``locality``, the global batch is drawn
    uniformly from all training nodes.
    """

    name = "zero_hop"

    def train_step(self, batch: GlobalBatch) -> StepReport:
        """See :class:`Engine`."""
        state = self.state
        state.packed.clear()
        roots = batch.homed_at(state.cluster.rank)
        subgraphs = state.trainer.sample(roots, batch.epoch, batch.iteration)
        state.trainer.accumulate(state.packed, subgraphs, state.rows, batch.size)
        return self.synchronise_and_update(batch)
