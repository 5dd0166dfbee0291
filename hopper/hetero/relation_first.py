"""Relation-aggregation-first computation (Heta, section 4, Algorithm 1).

Each rank aggregates the relations that its server stores, for its part of the roots. It fetches no
features. One partial for each root and group of servers travels, and its gradient. If layers read
their destinations, the roots' finished rows travel as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster.cluster import Cluster
from hopper.device.copies import to_device
from hopper.graph.block import Nodes, TypedBlocks
from hopper.hetero.root_layers import RootLayers
from hopper.hetero.root_shares import RootPlan, RootShares
from hopper.models.relational import HGNN
from hopper.timing.run_log import RunLog


@dataclass(frozen=True)
class Roots:
    """The roots of a type that a rank reads."""

    plan: RootPlan
    """this rank's part of the roots"""
    original: NDArray[np.int64]
    """[k], the original ids of ``plan.rows``"""
    x: Tensor | None
    """[k, in], their input rows; None if the type has none"""


class RelationFirst:
    """One rank's part of a forward pass that all ranks make together, of a model that is equal on
    every rank. ``shares`` divide the roots of each type over ranks."""

    def __init__(
        self, cluster: Cluster, log: RunLog, model: HGNN, shares: Mapping[str, RootShares]
    ) -> None:
        self._cluster = cluster
        self._log = log
        self._model = model
        self.types = tuple(sorted(shares))
        """the types of roots, in the order in which ranks exchange their partials"""
        self._of = {name: RootLayers(cluster, log, model, name, shares[name]) for name in shares}

    def plan(self, counts: Mapping[str, int]) -> dict[str, RootPlan]:
        """Return this rank's part of a batch, by type. It depends only on the numbers of roots."""
        return {name: self._of[name].plan(counts.get(name, 0)) for name in self.types}

    def finishers(self, node_type: str, count: int) -> NDArray[np.int64]:
        """Return the rank [count], int64, that finishes each root of a type."""
        return self._of[node_type].shares.deal(count)[1]

    def lay_out(self, hops: Sequence[TypedBlocks]) -> None:
        """Prepare the edges of all hops, ahead of the pass of training that computes on them."""
        model = self._model
        names = [name for name in model.types if name in hops[0].sources]
        for index, hop in enumerate(hops):
            types = self._types_below(index, names)
            model.lay_out_layer(index, hop, names, types)
            for name in self._root_types(index):
                self._of[name].lay_out(model.relation_layer(index), hop)
            names = types

    def _root_types(self, index: int) -> list[str]:
        """Return the types of which a layer computes rows of roots."""
        layers = len(self._model.layers)
        return [name for name in self.types if index >= layers - self._of[name].layers]

    def _types_below(self, index: int, names: Iterable[str]) -> list[str]:
        """Return the types of which a layer computes rows below the roots, where this server has
        rows of types ``names``."""
        if index + 1 == len(self._model.layers):
            return []
        return [name for name in self._model.relation_layer(index).types if name in names]

    def rows(
        self,
        roots: Mapping[str, Roots],
        hops: Sequence[TypedBlocks],
        x: Mapping[str, Tensor],
        where: str,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Compute the last layer's rows [f, width] of the roots that this rank finishes, by type.

        The hops are below the roots that the plans call ``mine``, from the sampler of
        :func:`hopper.hetero.rooted.make_rooted_sampler`, with input rows ``x`` by type.

        Also return a zero that the loss must add. It depends on all received rows, because the
        backward pass is an exchange in which every rank must take part.
        """
        model, device = self._model, self._cluster.device
        key = next(iter(hops[0].nodes.values())).iteration_key
        nodes, root_rows = {}, {}
        for name in self.types:
            original = to_device(roots[name].original, device)
            nodes[name] = Nodes(name, original, None, key)
        h = model.enter(x, hops[0].sources)
        for name, roots_of_type in roots.items():
            root_rows[name] = model.first_rows(name, roots_of_type.x, len(roots_of_type.original))
        tie = root_rows[self.types[0]].new_zeros(())
        for index, hop in enumerate(hops):
            layer = model.relation_layer(index)
            h = model.drop_all(index, hop, h)
            is_last = index + 1 == len(hops)
            moment = f"{where}, layer {index}"
            computed = self._root_types(index)
            exchanges, below = {}, h
            for name in computed:
                root_rows[name] = model.drop(index, nodes[name], root_rows[name])
                exchanges[name] = self._of[name].send_partials(
                    layer, hop, h, root_rows[name], roots[name].plan, moment
                )
            if not is_last:
                # This runs while partials travel, and its backward pass while their gradients do.
                with self._log.stage("compute", operation="below the roots"):
                    # New rows of the types that this server stores.
                    below = layer(hop, h, self._types_below(index, h))
            for name in computed:
                root_rows[name], received = self._of[name].finish(
                    layer,
                    exchanges[name],
                    root_rows[name],
                    roots[name].plan,
                    moment,
                    is_last=is_last,
                )
                tie = tie + received
            h = below
        return root_rows, tie
