"""Feature-centric training: models migrate to the features (HopGNN, section 5)."""

from __future__ import annotations

from dataclasses import dataclass

from hopper.engines.data_parallel import list_reads
from hopper.engines.engine import Engine, Plan, Spec, TrainState
from hopper.engines.request import Request
from hopper.engines.zero_hop import HOMED
from hopper.errors import RequestError
from hopper.features import InputRows, PartitionedRows
from hopper.micrograph.merge import TimeSteps, make_time_steps
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.migration import ReplicaBuffers, Transport
from hopper.migrate.schedule import Visit, visits
from hopper.traffic import Cause

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

    @property
    def num_edges(self) -> int:
        """The number of edges that the groups hold together."""
        return sum(subgraph.num_edges for group in self.groups.values() for subgraph in group)


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
        steps = self._time_steps(batch)
        schedule = visits(steps.ranks, self.state.cluster.rank)
        groups = self._sample(batch, steps, schedule)
        subgraphs = [subgraph for group in groups.values() for subgraph in group]
        ahead = self.state.config.hop.pregather
        return HopPlan(batch, list_reads(subgraphs), schedule, groups, reads_ahead=ahead)

    def read(self, plan: HopPlan, rows: PartitionedRows) -> InputRows:
        """Fetch remote rows once for all groups, if pre-gathering is on.

        All other rows are read when their group is trained, so that memory holds those of one
        group.
        """
        if not self.state.config.hop.pregather:
            return rows
        subgraphs = [subgraph for group in plan.groups.values() for subgraph in group]
        return self.state.trainer.pregather(rows, subgraphs)

    def compute(self, plan: HopPlan, inputs: InputRows) -> None:
        """Train the groups of every time step, and move models between time steps."""
        groups, schedule = plan.groups, plan.schedule
        self._buffers.start(schedule[0].models)
        for visit in schedule:
            if visit.step > 0:
                self._move_models(plan.batch, schedule[visit.step - 1], visit)
            for model in visit.models:
                # Popping the group frees its memory after training.
                group = groups.pop((visit.step, model))
                self._train(plan.batch, group, inputs, visit.step, model)
        self._buffers.reduce()

    def _time_steps(self, batch: GlobalBatch) -> TimeSteps:
        config = self.state.config
        return make_time_steps(
            batch,
            self.state.cluster.world,
            self._merged,
            config.hop.merge_selection,
            config.train.seed,
        )

    def _sample(self, batch: GlobalBatch, steps: TimeSteps, schedule: list[Visit]) -> Groups:
        groups: Groups = {}
        for visit in schedule:
            for model in visit.models:
                with self.state.log.note_fields(step=visit.step, model=model):
                    roots = steps.groups[model][visit.step]
                    groups[visit.step, model] = self.state.trainer.sample(
                        roots, batch.epoch, batch.iteration
                    )
        return groups

    def _train(
        self,
        batch: GlobalBatch,
        subgraphs: list[Subgraph],
        rows: InputRows,
        step: int,
        model: int,
    ) -> None:
        state = self.state
        with state.log.note_fields(step=step, model=model), self._buffers.load(model) as packed:
            state.trainer.accumulate(packed, subgraphs, rows, batch.size)

    def _move_models(self, batch: GlobalBatch, before: Visit, now: Visit) -> None:
        """Send on the models of the previous time step, and receive those of this one."""
        moment = (batch.epoch, batch.iteration, now.step)
        buffers = dict.fromkeys(range(self.state.cluster.world), self._buffers)
        with self.state.log.note_fields(step=now.step):
            self._transport.move_models(buffers, moment, before, now)
