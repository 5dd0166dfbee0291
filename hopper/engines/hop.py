"""Feature-centric training: models migrate to the features (HopGNN, section 5)."""

from __future__ import annotations

from hopper.engines.engine import Engine, StepReport, TrainState
from hopper.features import FeatureSource, PregatheredRows
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.schedule import Visit, visits
from hopper.migrate.transport import RingTransport


class Hop(Engine):
    """Models travel around a ring of ranks and train each group where its roots live.

    What moves: packed models (parameters and accumulated gradients, or gradients only, which is
    enough while replicas are synchronous), few remote input rows, and gradients.
    """

    name = "hop"

    def __init__(self, state: TrainState) -> None:
        super().__init__(state)
        self._transport = RingTransport(state.cluster, state.log)

    def train_step(self, batch: GlobalBatch) -> StepReport:
        """See :class:`Engine`."""
        state = self.state
        state.packed.clear()
        schedule = visits(state.cluster.rank, state.cluster.world)
        groups = {visit.model: self._sample(batch, visit) for visit in schedule}
        rows = self._pregather(groups) if state.config.hop.pregather else state.rows
        for visit in schedule:
            self._receive(batch, visit)
            state.trainer.accumulate(state.packed, groups.pop(visit.model), rows, batch.size)
        return self.synchronise_and_update(batch)

    def _sample(self, batch: GlobalBatch, visit: Visit) -> list[Subgraph]:
        roots = batch.group(visit.model, self.state.cluster.rank)
        return self.state.trainer.sample(roots, batch.epoch, batch.iteration)

    def _pregather(self, groups: dict[int, list[Subgraph]]) -> FeatureSource:
        """Fetch the union of the remote rows of all groups, once."""
        node_type = self.state.trainer.node_type
        wanted = [part.nodes[node_type] for group in groups.values() for part in group]
        with self.state.log.stage("gather", operation="pregather"):
            return PregatheredRows(self.state.rows, node_type, wanted)

    def _receive(self, batch: GlobalBatch, visit: Visit) -> None:
        """Pass on the model of the step before, and take in this step's."""
        cluster, packed = self.state.cluster, self.state.packed
        if visit.receive_from is None or cluster.world == 1:
            return
        migrate = self.state.config.hop.migrate
        leaving = (visit.model + 1) % cluster.world
        self._transport.swap(
            packed.buffer if migrate == "model" else packed.accumulated,
            pass_to=(cluster.rank + 1) % cluster.world,
            receive_from=visit.receive_from,
            sent_header=(batch.epoch, batch.iteration, visit.step, leaving),
            due_header=(batch.epoch, batch.iteration, visit.step, visit.model),
            cause="model" if migrate == "model" else "gradient",
        )
