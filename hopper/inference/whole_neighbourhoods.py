"""Rows computed from whole k-hop neighbourhoods, some roots in a pass.

On graphs that are divided by nodes this serves modules with only a ``forward()``, and draws in
time, in which a node's neighbours depend on the root. On graphs that are divided by relation all
ranks compute the same nodes together: each relation is aggregated where it is stored, so no feature
crosses a link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

import numpy as np
import torch
from torch import Tensor

from hopper.errors import RequestError
from hopper.graph.topology import Ids
from hopper.hetero.relation_first import RelationFirst, Roots
from hopper.hetero.root_shares import RootShares
from hopper.hetero.rooted import find_read_nodes, nodes_below, root_name
from hopper.inference.inference import Inference, Scene, Wanted, check_output
from hopper.inference.row_space import RowSpace
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.models import run_model
from hopper.models.relational import HGNN
from hopper.timing.run_log import RunLog

_ROOTS_PER_PASS: Final = 256
_ROWS_PER_PASS: Final = 200_000
"""most input rows in a pass; larger ones are split"""


class Neighbourhoods(Inference):
    """Computes every node, or version, from its full k-hop neighbourhood."""

    def rows(
        self, model: torch.nn.Module, wanted: Wanted, space: RowSpace | None = None
    ) -> tuple[Ids, Tensor]:
        """Compute this rank's share of logits in memory; see :meth:`Inference.rows`."""
        check_output(model, wanted.output, by_relation=False)
        if wanted.output != "logits":
            kind = self.scene.request.config.sampler.kind
            raise RequestError(
                f"embeddings: with sampler.kind = {kind!r} a node has other rows for other roots; "
                "expected to predict logits"
            )
        target, rank = wanted.node_type or self.target, self._cluster.rank
        nodes = wanted.ids
        if self._are_versions:
            nodes = self.sampler.nodes_of(target, wanted.ids)
        mine = wanted.ids[self.placement.rank_of(target, nodes) == rank]
        outputs = [torch.empty((0, self._width_of(model)), dtype=self._dtype)]
        if self._reads.tables:
            # Ranks read learnable rows together, but make different numbers of passes. So the rows
            # of all passes are read at once.
            reads = self._sample(target, mine).nodes
            self._read_learned({name: [ids] for name, ids in reads.items()})
        sample = partial(self._sample, target)
        for _, subgraph in _passes(mine, _ROOTS_PER_PASS, sample, _count_rows):
            inputs = {n: self._inputs(n, ids) for n, ids in subgraph.nodes.items() if ids.size}
            logits = run_model(model, self._blocks(subgraph), inputs, [target])
            outputs.append(logits.cpu())
        return mine, torch.cat(outputs)


class ByRelation(Inference):
    """Computes nodes of a graph that is divided by relation, each chunk on all ranks together. The
    sampler takes all neighbours in the relations that this rank's server stores; ``shares`` say, by
    type, how roots are divided among ranks."""

    def __init__(
        self, scene: Scene, sampler: NeighborSampler, shares: Mapping[str, RootShares]
    ) -> None:
        super().__init__(scene, sampler)
        self._shares = shares

    def rows(
        self, model: torch.nn.Module, wanted: Wanted, space: RowSpace | None = None
    ) -> tuple[Ids, Tensor]:
        """Compute this rank's share of rows in memory; see :meth:`Inference.rows`."""
        assert isinstance(model, HGNN)
        target = wanted.node_type or self.target
        shares = {target: self._shares[target]}
        forward = RelationFirst(self._cluster, RunLog(None), model, shares)
        check_output(model, wanted.output, by_relation=True)
        ids, outputs = [np.empty(0, np.int64)], list[Tensor]()

        def sample(chunk: Ids) -> Subgraph:
            mine = forward.plan({target: chunk.size})[target].mine
            return self._sample(root_name(target), chunk[mine])

        size = _ROOTS_PER_PASS * self._cluster.world
        for chunk, subgraph in _passes(wanted.ids, size, sample, self._count_most_rows):
            plan = forward.plan({target: chunk.size})[target]
            versions = chunk[plan.rows]
            if self._are_versions:
                versions = self.sampler.nodes_of(target, versions)
            self._read_learned(find_read_nodes(subgraph, {target: versions}))
            x = {name: self._inputs(name, nodes) for name, nodes in nodes_below(subgraph).items()}
            # A server that computes nothing for roots may not store their rows.
            x_roots = self._inputs(target, versions) if versions.size else None
            original = self.graph.original_ids(target)[versions]
            roots = {target: Roots(plan, original, x_roots)}
            rows, _ = forward.rows(roots, self._blocks(subgraph), x, "evaluation")
            output = rows[target]
            if wanted.output == "logits":
                output = model.head(output)
            ids.append(chunk[plan.finishing])
            outputs.append(output.cpu())
        if not outputs:
            outputs = [torch.empty((0, self._width_of(model)), dtype=self._dtype)]
        return np.concatenate(ids), torch.cat(outputs)

    def _count_most_rows(self, subgraph: Subgraph) -> int:
        """Return the most rows that any rank would read in a pass; collective."""
        rows = torch.tensor([_count_rows(subgraph)])
        return int(self._cluster.all_gather(rows, "control", "sizing a pass of evaluation").max())


def _passes(
    ids: Ids, size: int, sample: Callable[[Ids], Subgraph], count_rows: Callable[[Subgraph], int]
) -> Iterator[tuple[Ids, Subgraph]]:
    """Yield chunks of at most ``size`` roots with their subgraphs, halved where these are large."""
    todo = [ids[start : start + size] for start in range(0, ids.size, size)]
    while todo:
        chunk = todo.pop(0)
        subgraph = sample(chunk)
        if chunk.size > 1 and count_rows(subgraph) > _ROWS_PER_PASS:
            todo = [*np.array_split(chunk, 2), *todo]
        else:
            yield chunk, subgraph


def _count_rows(subgraph: Subgraph) -> int:
    return sum(nodes.size for nodes in subgraph.nodes.values())
