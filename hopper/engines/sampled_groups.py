"""What engines share whose ranks sample and train groups of roots by themselves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hopper.engines.engine import Engine, Plan
from hopper.features import FeatureSource
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


def nodes_of(subgraphs: Sequence[Subgraph]) -> dict[str, list[NDArray[np.int64]]]:
    """By name of a type, the nodes of every subgraph."""
    reads: dict[str, list[NDArray[np.int64]]] = {}
    for subgraph in subgraphs:
        for name, ids in subgraph.nodes.items():
            reads.setdefault(name, []).append(ids)
    return reads


SampledPlan = TypeVar("SampledPlan", bound=Plan)


class SamplingEngine(Engine[SampledPlan, FeatureSource]):
    """An engine that reads rows pass by pass, so that memory holds one pass's; remote rows that
    several passes want are fetched before, once."""

    def fetched_once(self, subgraphs: Sequence[Subgraph]) -> FeatureSource:
        """Rows for several passes: remote ones are fetched now, each once for all of them."""
        return self.state.trainer.fetched_once(self.state.rows, subgraphs)


class OneGroup(SamplingEngine[GroupPlan]):
    """An engine whose ranks train one group each, under their own replica."""

    @abstractmethod
    def roots_of(self, batch: GlobalBatch) -> NDArray[np.int64]:
        """[n] int64 global ids: the roots of a batch that this rank trains; may be empty."""

    def plan(self, batch: GlobalBatch) -> GroupPlan:
        """See :class:`Engine`."""
        trainer = self.state.trainer
        subgraphs = trainer.sample(self.roots_of(batch), batch.epoch, batch.iteration)
        return GroupPlan(batch, nodes_of(subgraphs), subgraphs)

    def read(self, plan: GroupPlan) -> FeatureSource:
        """See :class:`Engine`."""
        several = len(plan.subgraphs) > 1
        return self.fetched_once(plan.subgraphs) if several else self.state.rows

    def compute(self, plan: GroupPlan, inputs: FeatureSource) -> None:
        """See :class:`Engine`."""
        state = self.state
        state.trainer.accumulate(state.packed, plan.subgraphs, inputs, plan.batch.size)
