"""Scores of models of typed graphs by layer-wise inference over full neighbourhoods.

In a pass each layer is computed once for every node that the scored nodes depend on, by the rank
that owns it, as engine ``cooperative`` trains. One pass scores all nodes of a split, unless memory
bounds it. No feature row crosses a link. No sampling, no dropout.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.micrograph.sample import NeighborSampler
from hopper.models.relational import HGNN
from hopper.partials import Forward, IterationPlan, Planner, choose_wires, make_stack
from hopper.run_log import RunLog
from hopper.train.evaluate import Evaluator, Scene

# Of one pass on one rank: bounds its memory.
MOST_EDGES: Final = 20_000_000
FEW_ROOTS: Final = 4096


class TypedEvaluator(Evaluator):
    """Scores on graphs of several node types.

    Parameters
    ----------
    sampler: which takes all neighbours that the model reads.
    """

    def __init__(self, scene: Scene, sampler: NeighborSampler) -> None:
        super().__init__(scene)
        self._sampler = sampler
        self._planner: tuple[HGNN, Planner, Forward] | None = None
        """of the model that was scored last: trials of a sweep may have different ones"""
        self._size: int | None = None
        """roots of a pass, once one was found to be small enough"""

    def logits(self, model: torch.nn.Module, split: str) -> tuple[NDArray[np.int64], Tensor]:
        """See :class:`Evaluator`."""
        assert isinstance(model, HGNN)
        planner, forward = self._planner_of(model)
        left = np.sort(self._graph.global_ids(self._target)[self._graph.split(split)])
        ids = [np.empty(0, np.int64)]
        outputs = [torch.empty((0, self._classes), dtype=self._dtype)]
        size = self._roots_at_once(left.size)
        while left.size:
            chunk = left[:size]
            mine = self._mine(chunk)
            plan = planner.plan(mine, 0, 0)
            if chunk.size > 1 and self._most(_edges(plan)) > MOST_EDGES:
                size = self._size = max(1, chunk.size // 2)
                continue
            left = left[size:]
            rows = self._entered_rows(model, plan)
            plan = plan.to(self._cluster.device)
            ids.append(mine)
            outputs.append(forward.logits(plan, {}, "evaluation", entered=rows).cpu())
        return np.concatenate(ids), torch.cat(outputs)

    def _planner_of(self, model: HGNN) -> tuple[Planner, Forward]:
        if self._planner is None or self._planner[0] is not model:
            # The old one's tables go first.
            self._planner = None
            stack = make_stack(model, self._sampler, 0)
            # Input rows are never held whole, so none travels as it is.
            wires = choose_wires(stack, self._dtype, gradients=False, learned=stack.widths)
            planner = Planner(self._sampler, self._placement, self._cluster, stack, wires)
            forward = Forward(self._cluster, RunLog(None), stack, wires, self._dtype)
            self._planner = model, planner, forward
        return self._planner[1:]

    def _mine(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some nodes of the target type that this rank computes."""
        return ids[self._placement.rank_of(self._target, ids) == self._cluster.rank]

    def _roots_at_once(self, scored: int) -> int:
        """Of all ranks together: all of them where even the whole graph would do, else a few, of
        which fewer may turn out to be too many."""
        if self._size is not None:
            return self._size
        edges = 0
        for relation, topology in self._sampler.topologies.items():
            stored = self._reads.types[relation.dst]
            first, stop = self._graph.book.range(stored, self._cluster.server)
            edges += int(topology.indptr[stop] - topology.indptr[first])
        whole = self._most(edges * len(self._sampler.fanouts)) <= MOST_EDGES
        return max(1, scored if whole else min(scored, FEW_ROOTS * self._cluster.world))

    def _most(self, count: int) -> int:
        """The largest count of any rank."""
        everyones = self._cluster.all_gather(
            torch.tensor([count]), "control", "sizing a pass of evaluation"
        )
        return int(everyones.max())

    def _entered_rows(self, model: HGNN, plan: IterationPlan) -> dict[str, Tensor]:
        """By type, [n, hidden]: this rank's projected input rows; collective."""
        self._read_learned({name: [ids] for name, ids in plan.nodes.items()})
        return {each: self._entered(model, each, plan.nodes[each]) for each in model.types}

    def _entered(self, model: HGNN, node_type: str, nodes: NDArray[np.int64]) -> Tensor:
        """[n, hidden]: of one type, in chunks of bounded memory."""
        limit = self._rows_per_chunk(model.widths[node_type])
        parts = []
        for start in range(0, max(1, nodes.size), limit):
            chunk = nodes[start : start + limit]
            rows = self._inputs(node_type, chunk)
            parts.append(model.first_rows(node_type, rows, chunk.size))
        return torch.cat(parts)


def _edges(plan: IterationPlan) -> int:
    """Edges that a rank aggregates over, in all layers."""
    return sum(layer.num_edges for layer in plan.layers)
