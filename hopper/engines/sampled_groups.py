"""The part that engines share whose ranks sample and train groups of roots alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopper.engines.accumulate import Pass
from hopper.engines.engine import Engine, Plan
from hopper.features import PartitionedRows
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.subgraph import Subgraph


@dataclass(frozen=True)
class GroupPlan(Plan):
    """The plan of one group.

    Attributes
    ----------
    subgraphs: one for each pass; none for an empty group.
    """

    subgraphs: Sequence[Subgraph]

    @property
    def num_edges(self) -> int:
        """The number of edges that the subgraphs hold together."""
        return sum(subgraph.num_edges for subgraph in self.subgraphs)


def list_reads(subgraphs: Sequence[Subgraph]) -> dict[str, list[NDArray[np.int64]]]:
    """Return the nodes of every subgraph, by name of a type, for :attr:`Plan.reads`.

    Edges whose features a subgraph reads are added by relation, as ``src/rel/dst``.
    """
    reads: dict[str, list[NDArray[np.int64]]] = {}
    for subgraph in subgraphs:
        for name, ids in subgraph.nodes.items():
            reads.setdefault(name, []).append(ids)
        for table, groups in subgraph.edge_tables().items():
            reads.setdefault(table, []).extend(groups)
    return reads


class OneGroup(Engine[GroupPlan, Iterable[Pass]]):
    """An engine whose ranks train one group each, with their own replica."""

    predicts_links = True

    @abstractmethod
    def choose_roots(self, batch: GlobalBatch) -> NDArray[np.int64]:
        """Return the global ids [n], int64, of the roots that this rank trains. It may be empty."""

    def plan(self, batch: GlobalBatch) -> GroupPlan:
        """Sample this rank's group."""
        trainer = self.state.trainer
        subgraphs = trainer.sample(self.choose_roots(batch), batch.epoch, batch.iteration)
        return GroupPlan(batch, list_reads(subgraphs), subgraphs)

    def read(self, plan: GroupPlan, rows: PartitionedRows) -> Iterable[Pass]:
        """Read the rows of the group.

        If there are several passes, remote rows are fetched now, each once. Local rows are read
        when their pass begins, so that memory holds those of one pass.
        """
        trainer = self.state.trainer
        if len(plan.subgraphs) == 1:
            return [trainer.read(plan.subgraphs[0], rows)]
        source = trainer.pregather(rows, plan.subgraphs)
        return (trainer.read(subgraph, source) for subgraph in plan.subgraphs)

    def has_one_backward(self, plan: GroupPlan) -> bool:
        """Return whether the group is one pass."""
        return len(plan.subgraphs) == 1

    def compute(self, plan: GroupPlan, inputs: Iterable[Pass]) -> None:
        """Train the passes of the group in turn."""
        state = self.state
        for work in inputs:
            state.trainer.train(state.packed, work, plan.batch.size)
