"""Feature-centric training: models migrate to the features (HopGNN, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from hopper.cluster.traffic import Cause
from hopper.engines.data_parallel import count_edges, list_reads
from hopper.engines.engine import Engine, Plan, Spec, TrainState
from hopper.engines.request import Request
from hopper.engines.zero_hop import HOMED
from hopper.errors import RequestError
from hopper.features import InputRows, PartitionedRows
from hopper.micrograph.merge import make_time_steps
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.migration import ReplicaBuffers, Transport
from hopper.migrate.schedule import Visit, visits

Groups = dict[tuple[int, int], list[Subgraph]]
"""the subgraphs of groups, by time step and model"""


@dataclass(frozen=True)
class HopPlan(Plan):
    """The groups that a rank trains, and the models that visit it for them.

    Attributes
    ----------
    schedule: the visits, in order of time steps.
    groups: the groups' subgraphs, by time step and model.
    """

    schedule: list[Visit]
    groups: Groups


class Hop(Engine[HopPlan, InputRows]):
    """Models travel around a ring of ranks and train each group on its home rank.

    Flat models, few remote input rows and gradients cross the network. A flat model consists
    of parameters and accumulated gradients, or of gradients only, which is enough while replicas
    are synchronous.
    """

    # Roots stay at home, as no time step is dissolved in the plans that are counted for a cache.
    spec = Spec("hop", raised_option="hop.merge", predicts_links=True, plans_as=HOMED)

    @classmethod
    def check(cls, request: Request) -> None:
        """Refuse to dissolve all time steps."""
        merge, ranks = request.config.hop.merge, request.ranks
        if isinstance(merge, int) and merge >= ranks:
            raise RequestError(
                f"hop.merge: expected at most {ranks - 1}, one less than the {ranks} ranks (an "
                f"iteration has that many time steps), given {merge}"
            )

    def __init__(self, state: TrainState) -> None:
        super().__init__(state)
        moves_parameters = state.config.hop.migrate == "model"
        self._buffers = ReplicaBuffers(state.packed, moves_parameters)
        cause: Cause = "model" if moves_parameters else "gradient"
        self._transport = Transport(state.cluster, state.log, cause)
        merge = state.config.hop.merge
        self._merged = merge if isinstance(merge, int) else 0

    def plan(self, batch: GlobalBatch) -> HopPlan:
        """Sample the groups that this rank trains, time step by time step."""
        state, config, groups = self.state, self.state.config, Groups()
        world, selection = state.cluster.world, config.hop.merge_selection
        steps = make_time_steps(batch, world, self._merged, selection, config.train.seed)
        schedule = visits(steps.ranks, state.cluster.rank)
        for visit in schedule:
            for model in visit.models:
                with state.log.note_fields(step=visit.step, model=model):
                    roots = steps.groups[model][visit.step]
                    groups[visit.step, model] = state.trainer.sample(
                        roots, batch.epoch, batch.iteration
                    )
        subgraphs = [*chain(*groups.values())]
        return HopPlan(
            *(batch, list_reads(subgraphs), schedule, groups),
            reads_ahead=config.hop.pregather,
            num_edges=count_edges(subgraphs),
        )

    def read(self, plan: HopPlan, rows: PartitionedRows) -> InputRows:
        """Fetch remote rows once for all groups, if pre-gathering is on.

        All other rows are read when their group is trained, so that memory holds those of one
        group.
        """
        if not plan.reads_ahead:
            return rows
        return self.state.trainer.pregather(rows, [*chain(*plan.groups.values())])

    def compute(self, plan: HopPlan, inputs: InputRows) -> None:
        """Train the groups of every time step, and move models between time steps."""
        state, batch, schedule = self.state, plan.batch, plan.schedule
        self._buffers.start(schedule[0].models)
        for visit in schedule:
            if visit.step > 0:
                self._move_models(batch, schedule[visit.step - 1], visit)
            for model in visit.models:
                # Popping the group frees its memory after training.
                group = plan.groups.pop((visit.step, model))
                fields = state.log.note_fields(step=visit.step, model=model)
                with fields, self._buffers.load(model) as packed:
                    state.trainer.accumulate(packed, group, inputs, batch.size)
        self._buffers.reduce()

    def _move_models(self, batch: GlobalBatch, before: Visit, now: Visit) -> None:
        """Send on the models of the previous time step, and receive those of this one."""
        moment = (batch.epoch, batch.iteration, now.step)
        buffers = dict.fromkeys(range(self.state.cluster.world), self._buffers)
        with self.state.log.note_fields(step=now.step):
            self._transport.move_models(buffers, moment, before, now)
