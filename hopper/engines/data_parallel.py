"""Engines whose ranks train a part of the roots each, with replicas of one model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hopper.engines.engine import Engine, Plan, Spec
from hopper.engines.micro_batch import MicroBatch
from hopper.features import PartitionedRows
from hopper.graph.topology import Ids
from hopper.micrograph.route import GlobalBatch, LocalRootSchedule
from hopper.micrograph.subgraph import Subgraph

HOMED: Final = "homed"
"""the plans in which a rank reads for the roots that it owns"""


@dataclass(frozen=True)
class GroupPlan(Plan):
    """The plan of one group, with a subgraph for each micro-batch; none for an empty group."""

    subgraphs: Sequence[Subgraph]


def count_reads(subgraphs: Sequence[Subgraph]) -> dict[str, Any]:
    """Return the fields of a :class:`Plan` that follow from the subgraphs that a rank trains."""
    reads: dict[str, list[Ids]] = {}
    for subgraph in subgraphs:
        for name, ids in subgraph.nodes.items():
            reads.setdefault(name, []).append(ids)
        for table, groups in subgraph.edge_tables().items():
            reads.setdefault(table, []).extend(groups)
    return {"reads": reads, "num_edges": sum(subgraph.num_edges for subgraph in subgraphs)}


class DataParallelEngine(Engine[GroupPlan, Iterable[MicroBatch]]):
    """An engine that only chooses which roots a rank trains.

    Any division of a global batch has the same gradient. The remote input rows of the rank's
    roots, each once, and gradients cross the network.
    """

    @abstractmethod
    def choose_roots(self, batch: GlobalBatch) -> Ids:
        """Return the global ids [n], int64, of the roots that this rank trains. It may be empty.

        Where edges are predicted, roots are edges.
        """

    def plan(self, batch: GlobalBatch) -> GroupPlan:
        """Sample this rank's group."""
        roots = self.choose_roots(batch)
        subgraphs = self.state.trainer.sample(roots, batch.epoch, batch.iteration)
        return GroupPlan(
            batch,
            subgraphs=subgraphs,
            reads_ahead=True,
            one_backward=len(subgraphs) == 1,
            **count_reads(subgraphs),
        )

    def read(self, plan: GroupPlan, rows: PartitionedRows) -> Iterable[MicroBatch]:
        """Read the rows of the group.

        If there are several micro-batches, remote rows are fetched now, each once. Local rows are
        read when their micro-batch begins, so that memory holds those of one.
        """
        trainer = self.state.trainer
        if len(plan.subgraphs) == 1:
            return [trainer.read(plan.subgraphs[0], rows)]
        source = trainer.pregather(rows, plan.reads)
        return (trainer.read(subgraph, source) for subgraph in plan.subgraphs)

    def compute(self, plan: GroupPlan, inputs: Iterable[MicroBatch]) -> None:
        """Train the micro-batches of the group in turn."""
        for micro_batch in inputs:
            self.state.trainer.train(self.state.packed, micro_batch, plan.batch.size)


class ModelCentric(DataParallelEngine):
    """Features travel to the model, as in DGL, HopGNN's baseline: each rank trains a mini-batch
    that is drawn at random from all roots."""

    spec = Spec("model_centric", predicts_links=True)

    def choose_roots(self, batch: GlobalBatch) -> Ids:
        """Return the roots of this rank's mini-batch."""
        return batch.of_model(self.state.cluster.rank)


class Locality(ModelCentric):
    """Draws each rank's mini-batches from its own roots only ("LO" in HopGNN, section 5.1).

    It is fast and biased: each rank sees the same community all the time.
    """

    spec = replace(
        ModelCentric.spec,
        name="locality",
        schedule=LocalRootSchedule,
        biased="each rank draws its mini-batches from its own roots only",
    )


class ZeroHop(DataParallelEngine):
    """Each rank trains all roots of the global batch whose home it is, and no model travels.

    The global gradient is a sum over roots, so any replica may train a root. Unlike under
    ``locality``, the global batch is drawn uniformly from all training nodes.
    """

    spec = Spec("zero_hop", predicts_links=True, plans_as=HOMED)

    def choose_roots(self, batch: GlobalBatch) -> Ids:
        """Return the roots whose home is this rank."""
        return batch.of_home(self.state.cluster.rank)
