"""Engines whose ranks train a part of the roots each, with replicas of one model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopper.engines.engine import Engine, Plan
from hopper.engines.micro_batch import MicroBatch
from hopper.features import PartitionedRows
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.subgraph import Subgraph


@dataclass(frozen=True)
class GroupPlan(Plan):
    """The plan of one group.

    Attributes
    ----------
    subgraphs: one for each micro-batch; none for an empty group.
    """

    subgraphs: Sequence[Subgraph]


def list_reads(subgraphs: Sequence[Subgraph]) -> dict[str, list[NDArray[np.int64]]]:
    """Return the nodes, and the edges whose features are read, as :attr:`Plan.reads` has them."""
    reads: dict[str, list[NDArray[np.int64]]] = {}
    for subgraph in subgraphs:
        for name, ids in subgraph.nodes.items():
            reads.setdefault(name, []).append(ids)
        for table, groups in subgraph.edge_tables().items():
            reads.setdefault(table, []).extend(groups)
    return reads


def count_edges(subgraphs: Iterable[Subgraph]) -> int:
    """Return the number of edges that subgraphs hold together, as :attr:`Plan.num_edges` has it."""
    return sum(subgraph.num_edges for subgraph in subgraphs)


class DataParallelEngine(Engine[GroupPlan, Iterable[MicroBatch]]):
    """An engine that only chooses which roots a rank trains.

    Any division of a global batch has the same gradient. The remote input rows of the rank's
    roots, each once, and gradients cross the network.
    """

    @abstractmethod
    def choose_roots(self, batch: GlobalBatch) -> NDArray[np.int64]:
        """Return the global ids [n], int64, of the roots that this rank trains. It may be empty.

        Where edges are predicted, roots are edges.
        """

    def plan(self, batch: GlobalBatch) -> GroupPlan:
        """Sample this rank's group."""
        trainer, roots = self.state.trainer, self.choose_roots(batch)
        subgraphs = trainer.sample(roots, batch.epoch, batch.iteration)
        return GroupPlan(
            *(batch, list_reads(subgraphs), subgraphs),
            reads_ahead=True,
            one_backward=len(subgraphs) == 1,
            num_edges=count_edges(subgraphs),
        )

    def read(self, plan: GroupPlan, rows: PartitionedRows) -> Iterable[MicroBatch]:
        """Read the rows of the group.

        If there are several micro-batches, remote rows are fetched now, each once. Local rows are
        read when their micro-batch begins, so that memory holds those of one.
        """
        trainer = self.state.trainer
        if len(plan.subgraphs) == 1:
            return [trainer.read(plan.subgraphs[0], rows)]
        source = trainer.pregather(rows, plan.subgraphs)
        return (trainer.read(subgraph, source) for subgraph in plan.subgraphs)

    def compute(self, plan: GroupPlan, inputs: Iterable[MicroBatch]) -> None:
        """Train the micro-batches of the group in turn."""
        state = self.state
        for micro_batch in inputs:
            state.trainer.train(state.packed, micro_batch, plan.batch.size)
