"""Relation-aggregation-first computation (Heta, section 4, Algorithm 1).

Each rank aggregates the relations that its server stores, for its part of the roots, and fetches no
feature. What travels is one partial aggregation per root and group of servers, its gradient, and,
for layers that read their destination, the roots' finished rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster
from hopper.device_copies import to_device
from hopper.graph.block import Nodes, TypedBlocks
from hopper.graph.schema import Relation
from hopper.hetero.root_layers import RootLayers
from hopper.hetero.root_shares import RootPlan, RootShares
from hopper.micrograph.subgraph import Subgraph
from hopper.models.relational import HGNN, RelationLayer
from hopper.run_log import RunLog


@dataclass(frozen=True)
class Roots:
    """What a rank reads of the roots of a type.

    Attributes
    ----------
    plan: its part of them.
    original: [k] int64, the original ids of ``plan.rows``. x: [k, in], their input rows.
    """

    plan: RootPlan
    original: NDArray[np.int64]
    x: Tensor | None


class RelationFirst:
    """One rank's forward pass, together with the others.

    Parameters
    ----------
    model: on every rank the same.
    shares: by type of the roots, how they are divided.
    """

    def __init__(
        self, cluster: Cluster, log: RunLog, model: HGNN, shares: Mapping[str, RootShares]
    ) -> None:
        self._cluster = cluster
        self._log = log
        self._model = model
        self.types = tuple(sorted(shares))
        """of the roots, in the order in which ranks hand each other what is made of them"""
        self._of = {each: RootLayers(cluster, log, model, each, shares[each]) for each in shares}

    def plan(self, counts: Mapping[str, int]) -> dict[str, RootPlan]:
        """By type, this rank's part of a batch of so many roots, the same for all of that size."""
        return {each: self._of[each].plan(counts.get(each, 0)) for each in self.types}

    def finishers(self, node_type: str, count: int) -> NDArray[np.int64]:
        """[count] int64: the rank that finishes each root of a type."""
        return self._of[node_type].shares.deal(count)[1]

    def rows(
        self,
        roots: Mapping[str, Roots],
        subgraph: Subgraph,
        edges: Mapping[Relation, Tensor],
        x: Mapping[str, Tensor],
        where: str,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """By type, [f, width]: the last layer's rows of the roots that this rank finishes, which
        the model's head makes logits of; and a zero that a loss has to add.

        The zero depends on all that was received: the gradients' way back is an exchange, which no
        rank may leave out.

        Parameters
        ----------
        roots: by type, what it reads of them.
        subgraph: of what their plans say are ``mine``, as
            :func:`hopper.hetero.rooted.make_rooted_sampler` samples it.
        edges: by relation, features of its edges, as of :meth:`Subgraph.typed_blocks`.
        x: by type, input rows of the subgraph's nodes.
        """
        model, device = self._model, self._cluster.device
        hops = subgraph.typed_blocks(device, edges)
        nodes, own = {}, {}
        for each in self.types:
            original = to_device(roots[each].original, device)
            nodes[each] = Nodes(each, original, None, subgraph.iteration_key)
        first = hops[0].sources
        h = {
            each: model.first_rows(each, x.get(each), first[each])
            for each in model.reading_order(x)
            if each in first
        }
        for each, of in roots.items():
            own[each] = model.first_rows(each, of.x, len(of.original))
        tie = own[self.types[0]].new_zeros(())
        for index, hop in enumerate(hops):
            layer = model.relation_layer(index)
            h = model.drop_all(index, hop, h)
            is_last = index + 1 == len(hops)
            at = f"{where}, layer {index}"
            made = [each for each in self.types if index >= len(hops) - self._of[each].layers]
            under_way, below = {}, h
            for each in made:
                own[each] = model.drop(index, nodes[each], own[each])
                under_way[each] = self._of[each].send_partials(
                    layer, hop, h, own[each], roots[each].plan, at
                )
            if not is_last:
                # While partials travel, and on the way back while their gradients do.
                below = self._inner(layer, hop, h)
            for each in made:
                own[each], received = self._of[each].finish(
                    layer, under_way[each], own[each], roots[each].plan, at, is_last=is_last
                )
                tie = tie + received
            h = below
        return own, tie

    def _inner(
        self, layer: RelationLayer, hop: TypedBlocks, h: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """New rows of the nodes below the roots, of the types that this server stores."""
        with self._log.stage("compute", operation="below the roots"):
            return layer(hop, h, [each for each in layer.types if each in h])
