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
from hopper.micrograph.frontiers import HashTable
from hopper.micrograph.sample import NeighborSampler
from hopper.partials import KindsExchange, RowKind, StackLayer, source_type
from hopper.partition.placement import Placement
from hopper.timing.run_log import RunLog

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

        mine = mark({target: [self._placement.deal(self._stored[target], ids)[rank]]})
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
        return self._placement.deal(self._stored[name], np.flatnonzero(reached))

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


@dataclass(frozen=True)
class NodeRows:
    """Rows of nodes, in memory or in a mapped file.

    Attributes
    ----------
    ids: [n] int64 global ids.
    values: [n, ...] their rows.
    device: the device of computation, which rows are copied to.
    """

    ids: Ids
    values: Tensor
    device: torch.device

    def of(self, ids: Ids) -> Tensor:
        """Return the rows of some nodes on the device: [m, ...]."""
        places = torch.from_numpy(self._index.find(ids))
        return self.values.index_select(0, places.to(self.values.device)).to(self.device)

    @cached_property
    def _index(self) -> HashTable:
        return HashTable(self.ids)


def exchange_rows(
    cluster: Cluster,
    dtype: torch.dtype,
    share: Share,
    rows: Mapping[RowKind, NodeRows],
    most: int,
) -> None:
    """Fill the room after this rank's rows with other ranks' rows; collective.

    The exchange takes rounds of bounded size.

    Parameters
    ----------
    dtype: dtype of the rows.
    rows: by kind, the rows of ``share.known``, with room for those of ``share.wanted``.
    most: the most rows of a kind that a rank sends another in one round.
    """
    types = {kind: source_type(kind) for kind in rows}
    rows_here = {
        kind: NodeRows(
            share.known[name], rows[kind].values[: share.known[name].size], cluster.device
        )
        for kind, name in types.items()
    }
    for first in range(0, share.longest, most):
        piece = slice(first, first + most)
        asked = [[ids[piece] for ids in share.asked[name]] for name in types.values()]
        exchange = KindsExchange(
            cluster,
            RunLog(None),
            {
                kind: rows_here[kind].of(np.concatenate(ids))
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
