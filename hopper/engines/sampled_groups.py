"""What engines share whose ranks sample and train groups of roots by themselves."""

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
    subgraphs: one per pass; none for an empty group.
    """

    subgraphs: Sequence[Subgraph]

    @property
    def num_edges(self) -> int:
        """See :class:`Plan`."""
        return sum(each.num_edges for each in self.subgraphs)


def rows_of(subgraphs: Sequence[Subgraph]) -> dict[str, list[NDArray[np.int64]]]:
    """By name of a type, the nodes of every subgraph, and by relation the edges whose features it
    reads."""
    reads: dict[str, list[NDArray[np.int64]]] = {}
    for subgraph in subgraphs:
        for name, ids in subgraph.nodes.items():
            reads.setdefault(name, []).append(ids)
        for table, groups in subgraph.edge_tables().items():
            reads.setdefault(table, []).extend(groups)
    return reads


class OneGroup(Engine[GroupPlan, Iterable[Pass]]):
    """An engine whose ranks train one group each, under their own replica."""

    predicts_links = True

    @abstractmethod
    def roots_of(self, batch: GlobalBatch) -> NDArray[np.int64]:
        """[n] int64 global ids: the roots of a batch that this rank trains; may be empty."""

    def plan(self, batch: GlobalBatch) -> GroupPlan:
        """See :class:`Engine`."""
        trainer = self.state.trainer
        subgraphs = trainer.sample(self.roots_of(batch), batch.epoch, batch.iteration)
        return GroupPlan(batch, rows_of(subgraphs), subgraphs)

    def read(self, plan: GroupPlan, rows: PartitionedRows) -> Iterable[Pass]:
        """See :class:`Engine`. Of several passes, rows of other servers are read now, each once,
        and own rows when the pass is due, so that memory holds one pass's."""
        trainer = self.state.trainer
        if len(plan.subgraphs) == 1:
            return [trainer.read(plan.subgraphs[0], rows)]
        source = trainer.fetched_once(rows, plan.subgraphs)
        return (trainer.read(subgraph, source) for subgraph in plan.subgraphs)

    def goes_back_once(self, plan: GroupPlan) -> bool:
        """See :class:`Engine`."""
        return len(plan.subgraphs) == 1

    def compute(self, plan: GroupPlan, inputs: Iterable[Pass]) -> None:
        """See :class:`Engine`."""
        state = self.state
        for work in inputs:
            state.trainer.train(state.packed, work, plan.batch.size)
