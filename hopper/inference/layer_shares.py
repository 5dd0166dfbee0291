"""This rank's share of the work on each layer, and the rows that ranks send each other for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.kernel import kernel
from hopper.cluster.array_exchange import exchange_arrays
from hopper.cluster.cluster import Cluster
from hopper.graph.topology import Ids
from hopper.micrograph.frontiers import HashTable
from hopper.micrograph.sample import NeighborSampler
from hopper.partials import KindsExchange, RowKind, StackLayer, source_type
from hopper.partition.placement import Placement
from hopper.timing.run_log import RunLog


@dataclass(frozen=True)
class Share:
    """This rank's share of the work on a layer: nodes by type, [n] int64 each, ascending."""

    known: Mapping[str, Ids]
    """this rank's nodes whose rows before the layer any rank reads"""
    mine: Mapping[str, Ids]
    """this rank's nodes whose rows after the layer it computes"""
    wanted: Mapping[str, list[Ids]]
    """by rank, that rank's nodes which ``mine`` reads"""
    asked: Mapping[str, list[Ids]]
    """by rank, this rank's nodes which that rank reads"""
    longest: int = 0
    """the most nodes of a type that any rank reads of any other"""


def plan_shares(
    cluster: Cluster,
    placement: Placement,
    sampler: NeighborSampler,
    stored: Mapping[str, str],
    target: str,
    ids: Ids,
    layers: Sequence[StackLayer],
) -> list[Share]:
    """Return this rank's share of every layer, found from the last layer to the first; collective.

    ``ids``, [n] global ids of type ``target``, are the nodes whose rows are wanted. The sampler has
    the topology of all relations, and ``stored`` the type under which the nodes of each are stored.
    """
    rank, names = cluster.rank, list(stored)
    owned = {name: placement.owned(stored[name], rank) for name in names}
    needed = {name: np.zeros(nodes.size, np.bool_) for name, nodes in owned.items()}

    def mark(asked: Mapping[str, Sequence[Ids]]) -> dict[str, Ids]:
        """Mark nodes of this rank as needed, and return all that are."""
        for name, parts in asked.items():
            for nodes in parts:
                needed[name][placement.place_of(stored[name], nodes)] = True
        return {name: nodes[needed[name]] for name, nodes in owned.items()}

    def find_read(name: str, layer: StackLayer) -> list[Ids]:
        """Return, by rank, the nodes of a type that new rows of this rank read."""
        reached = np.zeros(sampler.original_ids[name].size, np.bool_)
        for relation in layer.aggregations:
            if relation.src == name:
                topology = sampler.topologies[relation]
                rows = topology.rows(mine[relation.dst])
                _mark_sources(topology.indptr, topology.indices, rows, reached)
        return placement.deal(stored[name], np.flatnonzero(reached))

    operation = "planning evaluation"
    mine = mark({target: [placement.deal(stored[target], ids)[rank]]})
    shares: list[Share] = []
    for layer in reversed(layers):
        wanted = {name: find_read(name, layer) for name in names}
        sent = [[nodes.astype(np.int32) for nodes in parts] for parts in wanted.values()]
        received = exchange_arrays(cluster, sent, "control", operation)
        asked = {
            name: [nodes.astype(np.int64) for nodes in parts]
            for name, parts in zip(names, received, strict=True)
        }
        known = mark(asked)
        for parts in (*wanted.values(), *asked.values()):
            parts[rank] = np.empty(0, np.int64)
        longest = max(nodes.size for parts in wanted.values() for nodes in parts)
        if cluster.world > 1:
            by_rank = cluster.all_gather(torch.tensor([longest]), "control", operation)
            longest = int(by_rank.max())
        shares.insert(0, Share(known, mine, wanted, asked, longest))
        mine = known
    return shares


@kernel
def _mark_sources(indptr: Ids, indices: Ids, rows: Ids, reached: NDArray[np.bool_]) -> None:
    for row in rows:
        for edge in range(indptr[row], indptr[row + 1]):
            reached[indices[edge]] = True


@dataclass(frozen=True)
class NodeRows:
    """Rows of nodes, in memory or in a mapped file."""

    ids: Ids
    """[n] global ids"""
    values: Tensor
    """[n, ...] their rows"""
    device: torch.device
    """the device of computation, which rows are copied to"""

    def of(self, ids: Ids) -> Tensor:
        """Return the rows of some nodes on the device: [m, ...]."""
        places = torch.from_numpy(self._index.find(ids))
        return self.values.index_select(0, places.to(self.values.device)).to(self.device)

    @cached_property
    def _index(self) -> HashTable:
        return HashTable(self.ids)


def exchange_rows(
    cluster: Cluster, dtype: torch.dtype, share: Share, rows: Mapping[RowKind, NodeRows], most: int
) -> None:
    """Fill the room for ``share.wanted`` after this rank's rows of ``share.known``, by kind, with
    other ranks' rows; collective. In a round a rank sends another at most ``most`` of a kind."""
    types = {kind: source_type(kind) for kind in rows}
    for first in range(0, share.longest, most):
        piece = slice(first, first + most)
        asked = [[ids[piece] for ids in share.asked[name]] for name in types.values()]
        exchange = KindsExchange(
            cluster,
            RunLog(None),
            {
                kind: rows[kind].of(np.concatenate(ids))
                for kind, ids in zip(types, asked, strict=True)
            },
            [[ids.size for ids in parts] for parts in asked],
            [[ids[piece].size for ids in share.wanted[name]] for name in types.values()],
            dtype,
            "exchanging rows for evaluation",
        )
        for kind, parts in exchange.finish().items():
            values, offset = rows[kind].values, share.known[types[kind]].size
            for ids, part in zip(share.wanted[types[kind]], parts, strict=True):
                start = offset + min(first, ids.size)
                values[start : start + len(part)] = part.to(values.device)
                offset += ids.size
