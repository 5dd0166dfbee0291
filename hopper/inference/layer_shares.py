"""This rank's share of the work on each layer, and which rows ranks read of each other for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.array_exchange import exchange_arrays
from hopper.cluster import Cluster
from hopper.micrograph.sample import NeighborSampler
from hopper.partials import StackLayer
from hopper.partition.placement import Placement

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Share:
    """This rank's share of the work on a layer, by node type.

    Attributes
    ----------
    known: [n] int64, ascending: this rank's nodes whose rows before the layer any rank reads.
    mine: [n] int64, ascending: this rank's nodes whose rows after the layer it computes.
    wanted: by rank, that rank's nodes which ``mine`` reads.
    asked: by rank, this rank's nodes which that rank reads.
    longest: the most nodes of a type that any rank reads of any other.
    """

    known: Mapping[str, Ids]
    mine: Mapping[str, Ids]
    wanted: Mapping[str, list[Ids]]
    asked: Mapping[str, list[Ids]]
    longest: int = 0


class SharePlanner:
    """Finds out which nodes each layer has to compute, from the last layer to the first.

    Parameters
    ----------
    placement: tells which rank owns a node.
    sampler: has the topology of all relations.
    stored: by name of a node type, the type under which its nodes are stored.
    """

    def __init__(
        self,
        cluster: Cluster,
        placement: Placement,
        sampler: NeighborSampler,
        stored: Mapping[str, str],
    ) -> None:
        self._cluster, self._placement = cluster, placement
        self._sampler, self._stored = sampler, stored

    def plan(self, target: str, ids: Ids, layers: Sequence[StackLayer]) -> list[Share]:
        """Return this rank's share of every layer; collective.

        Parameters
        ----------
        target: the type of the nodes whose rows are wanted.
        ids: [n] int64, their global ids.
        """
        rank, names = self._cluster.rank, list(self._stored)
        owned = {name: self._placement.owned(self._stored[name], rank) for name in names}
        needed = {name: np.zeros(nodes.size, np.bool_) for name, nodes in owned.items()}

        def mark(asked: Mapping[str, Sequence[Ids]]) -> dict[str, Ids]:
            """Mark nodes of this rank as needed, and return all that are."""
            for name, parts in asked.items():
                for nodes in parts:
                    needed[name][self._placement.place_of(self._stored[name], nodes)] = True
            return {name: nodes[needed[name]] for name, nodes in owned.items()}

        mine = mark({target: [self._placement.deal(self._stored[target], ids).of(rank)]})
        shares: list[Share] = []
        for layer in reversed(layers):
            wanted = {name: self._read_by(mine, name, layer) for name in names}
            sent = [[nodes.astype(np.int32) for nodes in parts] for parts in wanted.values()]
            received = exchange_arrays(self._cluster, sent, "control", "planning evaluation")
            asked = {
                name: [nodes.astype(np.int64) for nodes in parts]
                for name, parts in zip(names, received, strict=True)
            }
            known = mark(asked)
            for parts in (*wanted.values(), *asked.values()):
                parts[rank] = np.empty(0, np.int64)
            shares.insert(0, Share(known, mine, wanted, asked, self._longest(wanted)))
            mine = known
        return shares

    def _read_by(self, mine: Mapping[str, Ids], name: str, layer: StackLayer) -> list[Ids]:
        """Return, by rank, the nodes of a type that new rows read: [n] int64, ascending."""
        reached = np.zeros(self._sampler.original_ids[name].size, np.bool_)
        for relation in layer.aggregations:
            if relation.src == name:
                topology = self._sampler.topologies[relation]
                rows = topology.rows(mine[relation.dst])
                _mark_sources(topology.indptr, topology.indices, rows, reached)
        return self._placement.deal(self._stored[name], np.flatnonzero(reached)).parts()

    def _longest(self, wanted: Mapping[str, Sequence[Ids]]) -> int:
        """Return the most nodes of a type that any rank reads of any other; collective."""
        if self._cluster.world == 1:
            return 0
        longest = torch.tensor([max(nodes.size for parts in wanted.values() for nodes in parts)])
        return int(self._cluster.all_gather(longest, "control", "planning evaluation").max())


@kernel
def _mark_sources(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    rows: NDArray[np.int64],
    reached: NDArray[np.bool_],
) -> None:
    for row in rows:
        for edge in range(indptr[row], indptr[row + 1]):
            reached[indices[edge]] = True
