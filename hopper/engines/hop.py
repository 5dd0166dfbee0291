"""Feature-centric training: models migrate to the features (HopGNN, section 5)."""

from __future__ import annotations

from hopper.engines.engine import Engine, StepReport, TrainState
from hopper.features import FeatureSource
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
        rows = self._rows(groups)
        before: Visit | None = None
        for visit in schedule:
            if before is not None:
                self._move_models(batch, before, visit)
            state.trainer.accumulate(state.packed, groups.pop(visit.model), rows, batch.size)
            before = visit
        return self.synchronise_and_update(batch)

    def _sample(self, batch: GlobalBatch, visit: Visit) -> list[Subgraph]:
        roots = batch.group(visit.model, self.state.cluster.rank)
        return self.state.trainer.sample(roots, batch.epoch, batch.iteration)

    def _rows(self, groups: dict[int, list[Subgraph]]) -> FeatureSource:
        """Where input rows come from: with pre-gathering, remote ones are fetched once for all."""
        if not self.state.config.hop.pregather:
            return self.state.rows
        return self.fetched_once([part for group in groups.values() for part in group])

    def _move_models(self, batch: GlobalBatch, before: Visit, now: Visit) -> None:
        """Pass on the model of the time step before, and take in this one's."""
        if before.pass_to is None or now.receive_from is None:
            raise ValueError(f"no model moves between {before} and {now}")
        migrate = self.state.config.hop.migrate
        packed = self.state.packed
        moment = (batch.epoch, batch.iteration, now.step)
        self._transport.swap(
            packed.buffer if migrate == "model" else packed.accumulated,
            pass_to=before.pass_to,
            receive_from=now.receive_from,
            sent_header=(*moment, before.model),
            due_header=(*moment, now.model),
            cause="model" if migrate == "model" else "gradient",
        )
