"""Feature-centric training: models migrate to the features (HopGNN, section 5)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from hopper.cluster.traffic import Cause
from hopper.engines.data_parallel import HOMED, count_reads
from hopper.engines.engine import Engine, Plan, Spec, TrainState
from hopper.engines.request import Request
from hopper.errors import RequestError
from hopper.features import InputRows, PartitionedRows
from hopper.micrograph.merge import make_time_steps
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.flat_model import FlatModel
from hopper.migrate.migration import ReplicaBuffers, Transport
from hopper.migrate.schedule import Visit, visits


@dataclass(frozen=True)
class HopPlan(Plan):
    """The visits of models in order of time steps, and the subgraphs of the groups that they train
    here, by time step and model."""

    schedule: list[Visit]
    groups: dict[tuple[int, int], list[Subgraph]]


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
        buffers = ReplicaBuffers(state.packed, moves_parameters)
        self._buffers = dict.fromkeys(range(state.cluster.world), buffers)
        cause: Cause = "model" if moves_parameters else "gradient"
        self._transport = Transport(state.cluster, state.log, cause)
        merge = state.config.hop.merge
        self._merged = merge if isinstance(merge, int) else 0

    def plan(self, batch: GlobalBatch) -> HopPlan:
        """Sample the groups that this rank trains, time step by time step."""
        state, config = self.state, self.state.config
        groups: dict[tuple[int, int], list[Subgraph]] = {}
        world, selection = state.cluster.world, config.hop.merge_selection
        steps = make_time_steps(batch, world, self._merged, selection, config.train.seed)
        schedule = visits(steps.ranks, state.cluster.rank)
        for visit in schedule:
            for model in visit.models:
                roots = steps.groups[model][visit.step]
                with state.log.note_fields(step=visit.step, model=model):
                    groups[visit.step, model] = state.trainer.sample(
                        roots, batch.epoch, batch.iteration
                    )
        return HopPlan(
            batch,
            schedule=schedule,
            groups=groups,
            reads_ahead=config.hop.pregather,
            **count_reads([*chain(*groups.values())]),
        )

    def read(self, plan: HopPlan, rows: PartitionedRows) -> InputRows:
        """Fetch remote rows once for all groups, if pre-gathering is on.

        All other rows are read when their group is trained, so that memory holds those of one
        group.
        """
        return self.state.trainer.pregather(rows, plan.reads) if plan.reads_ahead else rows

    def compute(self, plan: HopPlan, inputs: InputRows) -> None:
        """Train the groups of every time step, and move models between time steps."""
        trainer = self.state.trainer

        def train(step: int, model: int, packed: FlatModel) -> None:
            # Popping the group frees its memory after training.
            for subgraph in plan.groups.pop((step, model)):
                trainer.train(packed, trainer.read(subgraph, inputs), plan.batch.size)

        self._transport.travel(self._buffers, plan.schedule, plan.batch, train)
