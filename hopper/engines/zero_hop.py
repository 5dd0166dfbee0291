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
        self.state.packed.clear()
        self.train_roots(batch.homed_at(self.state.cluster.rank), batch)
        return self.synchronise_and_update(batch)
