"""Rows of nodes of graphs that are divided by relation: every node's whole neighbourhood, each part
aggregated where it is stored.

All ranks compute some nodes together; no feature crosses a link.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.hetero.relation_first import RelationFirst, Roots
from hopper.hetero.root_shares import RootShares
from hopper.hetero.rooted import nodes_below, nodes_read, roots_of
from hopper.inference.inference import (
    ROOTS_PER_PASS,
    ROWS_PER_PASS,
    Inference,
    Scene,
    Wanted,
    check_output,
)
from hopper.inference.row_space import RowSpace
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.models.relational import HGNN
from hopper.run_log import RunLog


class ByRelation(Inference):
    """Computes some nodes after the other, together with the other ranks.

    Parameters
    ----------
    sampler: as of :class:`Inference`, of what this rank's server stores.
    shares: by type, the division of roots.
    """

    def __init__(
        self, scene: Scene, sampler: NeighborSampler, shares: Mapping[str, RootShares]
    ) -> None:
        super().__init__(scene, sampler)
        self._shares = shares

    def takes_any_number(self, model: torch.nn.Module) -> bool:
        """See :class:`Inference`."""
        return True

    def rows(
        self, model: torch.nn.Module, wanted: Wanted, space: RowSpace | None = None
    ) -> tuple[NDArray[np.int64], Tensor]:
        """See :class:`Inference`; in memory."""
        assert isinstance(model, HGNN)
        target = wanted.node_type or self.target
        shares = {target: self._shares[target]}
        forward = RelationFirst(self._cluster, RunLog(None), model, shares)
        check_output(model, wanted.output, by_relation=True)
        scored = wanted.ids
        size = ROOTS_PER_PASS * self._cluster.world
        todo = [scored[start : start + size] for start in range(0, scored.size, size)]
        ids = [np.empty(0, np.int64)]
        outputs = []
        while todo:
            chunk = todo.pop(0)
            plan = forward.plan({target: chunk.size})[target]
            subgraph = self._sample(self._sampler, {roots_of(target): chunk[plan.mine]})
            if chunk.size > 1 and self._is_too_large(subgraph):
                todo = [*np.array_split(chunk, 2), *todo]
                continue
            read = chunk[plan.rows]
            if self._are_versions:
                read = self._sampler.nodes_of(target, read)
            x, x_roots = self._inputs_of(subgraph, target, read)
            original = self.graph.original_ids(target)[read]
            subgraph = subgraph.with_edges(self._reads.edges)
            edges, roots = self._edge_features(subgraph), {target: Roots(plan, original, x_roots)}
            rows, _ = forward.rows(roots, subgraph, edges, x, "evaluation")
            found = rows[target]
            if wanted.output == "logits":
                found = model.head(found)
            ids.append(chunk[plan.finishing])
            outputs.append(found.cpu())
        if not outputs:
            outputs = [torch.empty((0, self._width_of(model)), dtype=self._dtype)]
        return np.concatenate(ids), torch.cat(outputs)

    def _is_too_large(self, subgraph: Subgraph) -> bool:
        """Whether any rank would read more rows than a pass should; the same answer everywhere."""
        rows = torch.tensor([sum(nodes.size for nodes in subgraph.nodes.values())])
        everyones = self._cluster.all_gather(rows, "control", "sizing a pass of evaluation")
        return int(everyones.max()) > ROWS_PER_PASS

    def _inputs_of(
        self, subgraph: Subgraph, target: str, roots: NDArray[np.int64]
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Input rows of a subgraph's nodes by type, and of roots, None without any; collective."""
        self._read_learned(nodes_read(subgraph, {target: roots}))
        below = nodes_below(subgraph).items()
        x = {each: self._inputs(each, nodes) for each, nodes in below}
        # A server may not store rows of roots that it does nothing for.
        return x, self._inputs(target, roots) if roots.size else None
