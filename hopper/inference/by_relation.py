"""Rows of nodes in graphs that are divided by relation.

All ranks compute the same nodes together. Each relation is aggregated where it is stored, so no
feature crosses a link.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.hetero.relation_first import RelationFirst, Roots
from hopper.hetero.root_shares import RootShares
from hopper.hetero.rooted import find_read_nodes, nodes_below, root_name
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
from hopper.timing.run_log import RunLog


class ByRelation(Inference):
    """Computes nodes chunk by chunk, each chunk on all ranks together.

    Parameters
    ----------
    sampler: takes all neighbours in the relations that this rank's server stores.
    shares: by node type, how roots are divided among ranks.
    """

    def __init__(
        self, scene: Scene, sampler: NeighborSampler, shares: Mapping[str, RootShares]
    ) -> None:
        super().__init__(scene, sampler)
        self._shares = shares

    def rows(
        self, model: torch.nn.Module, wanted: Wanted, space: RowSpace | None = None
    ) -> tuple[NDArray[np.int64], Tensor]:
        """Compute this rank's share of rows in memory; see :meth:`Inference.rows`."""
        assert isinstance(model, HGNN)
        target = wanted.node_type or self.target
        shares = {target: self._shares[target]}
        forward = RelationFirst(self._cluster, RunLog(None), model, shares)
        check_output(model, wanted.output, by_relation=True)
        size = ROOTS_PER_PASS * self._cluster.world
        todo = [wanted.ids[start : start + size] for start in range(0, wanted.ids.size, size)]
        ids = [np.empty(0, np.int64)]
        outputs = []
        while todo:
            chunk = todo.pop(0)
            plan = forward.plan({target: chunk.size})[target]
            subgraph = self._sample(self._sampler, {root_name(target): chunk[plan.mine]})
            if chunk.size > 1 and self._is_too_large(subgraph):
                todo = [*np.array_split(chunk, 2), *todo]
                continue
            versions = chunk[plan.rows]
            if self._are_versions:
                versions = self._sampler.nodes_of(target, versions)
            x, x_roots = self._inputs_of(subgraph, target, versions)
            original = self.graph.original_ids(target)[versions]
            subgraph = subgraph.with_edges(self._reads.edges)
            edges, roots = self._edge_features(subgraph), {target: Roots(plan, original, x_roots)}
            rows, _ = forward.rows(roots, subgraph, edges, x, "evaluation")
            output = rows[target]
            if wanted.output == "logits":
                output = model.head(output)
            ids.append(chunk[plan.finishing])
            outputs.append(output.cpu())
        if not outputs:
            outputs = [torch.empty((0, self._width_of(model)), dtype=self._dtype)]
        return np.concatenate(ids), torch.cat(outputs)

    def _is_too_large(self, subgraph: Subgraph) -> bool:
        """Return whether any rank would read too many rows in one pass; collective."""
        rows = torch.tensor([sum(nodes.size for nodes in subgraph.nodes.values())])
        rows_by_rank = self._cluster.all_gather(rows, "control", "sizing a pass of evaluation")
        return int(rows_by_rank.max()) > ROWS_PER_PASS

    def _inputs_of(
        self, subgraph: Subgraph, target: str, roots: NDArray[np.int64]
    ) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return input rows of a subgraph's nodes by type, and those of roots; collective.

        The latter are None if there are no roots.
        """
        self._read_learned(find_read_nodes(subgraph, {target: roots}))
        below = nodes_below(subgraph).items()
        x = {node_type: self._inputs(node_type, nodes) for node_type, nodes in below}
        # A server that computes nothing for roots may not store their rows.
        return x, self._inputs(target, roots) if roots.size else None
