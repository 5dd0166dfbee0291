"""Rows of the ends of edges, which stay with the ranks that computed them.

Every rank knows all edges, and so which rows every other rank needs. Only these are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster.cluster import Cluster
from hopper.cluster.traffic import Cause
from hopper.graph.topology import Ids
from hopper.tasks import Decoder, LinkTable


@dataclass(frozen=True)
class EndRows:
    """Rows of nodes of a type, each on the rank that computed it."""

    cluster: Cluster
    nodes: Ids
    """[n], ascending: global ids or versions of all these nodes"""
    owners: NDArray[np.uint16]
    """[n], the ranks that have their rows"""
    rows: Tensor
    """[m, width], this rank's rows in the order of its nodes, in host memory"""

    @classmethod
    def of(cls, cluster: Cluster, nodes: Ids, ids: Ids, rows: Tensor, operation: str) -> EndRows:
        """Tell all ranks which of the nodes (ascending, the same on every rank) this one has rows
        of: ``ids``, ascending too. Every rank must call it."""
        # One bit more, since there may be no nodes.
        is_here = np.zeros(nodes.size + 1, np.bool_)
        is_here[np.searchsorted(nodes, ids)] = True
        bits = torch.from_numpy(np.packbits(is_here))
        owners = np.zeros(nodes.size, np.uint16)
        for rank, packed in enumerate(cluster.all_gather(bits, "control", operation).numpy()):
            owners[np.unpackbits(packed, count=nodes.size).view(np.bool_)] = rank
        return cls(cluster, nodes, owners, rows.cpu())

    @cached_property
    def own(self) -> Ids:
        """[m] int64, ascending: the nodes whose rows this rank has."""
        return self.nodes[self.owners == self.cluster.rank]

    def owners_of(self, ids: Ids) -> NDArray[np.uint16]:
        """Return [k]: the ranks that have the rows of some of the nodes."""
        return self.owners[np.searchsorted(self.nodes, ids)]

    def pick(self, nodes: Ids) -> EndRows:
        """Return the rows of some of the nodes, which are ascending."""
        return EndRows(self.cluster, nodes, self.owners_of(nodes), self._own_rows(nodes))

    def fetch(self, wanted: Sequence[Ids], operation: str) -> Tensor:
        """Return the rows [k, width] of the nodes that this rank needs. ``wanted`` has those that
        each rank needs, the same on every rank, and every rank must call it."""
        parts = [self._own_rows(ids) for ids in map(np.unique, wanted)]
        ids, places = np.unique(wanted[self.cluster.rank], return_inverse=True)
        rows = exchange_by_owner(self.cluster, parts, self.owners_of(ids), "partial", operation)
        return rows.index_select(0, torch.from_numpy(places))

    def fetch_everywhere(self, ids: Ids, operation: str) -> Tensor:
        """Return the rows [k, width] of nodes that all ranks need; every rank must call it."""
        return self.fetch([ids] * self.cluster.world, operation)

    def _own_rows(self, nodes: Ids) -> Tensor:
        """Return the rows of those nodes that this rank has."""
        here = nodes[self.owners_of(nodes) == self.cluster.rank]
        return self.rows.index_select(0, torch.from_numpy(np.searchsorted(self.own, here)))


def exchange_by_owner(
    cluster: Cluster, parts: Sequence[Tensor], owners: NDArray[Any], cause: Cause, operation: str
) -> Tensor:
    """Send ``parts[r]`` to every rank r, and return what this rank receives: [k, ...], each row
    from the rank that ``owners`` ([k]) names. Each rank sends its rows in order."""
    counts = np.bincount(owners, minlength=cluster.world).tolist()
    received = torch.cat(cluster.exchange(parts, counts, cause, operation))
    rows = torch.empty_like(received)
    rows[torch.from_numpy(np.argsort(owners, kind="stable"))] = received
    return rows


def parts_of(edges: Ids, cluster: Cluster) -> list[Ids]:
    """Divide edges that all ranks know into consecutive parts, one for each rank."""
    bounds = [edges.size * rank // cluster.world for rank in range(cluster.world + 1)]
    return [edges[start:stop] for start, stop in pairwise(bounds)]


def blocks_of(table: LinkTable, size: int) -> list[Ids]:
    """Divide a table into blocks of at most ``size`` ascending row numbers of one relation."""
    ends = np.searchsorted(table.relations, np.arange(len(table.targets) + 1))
    return [
        np.arange(first, min(first + size, stop))
        for start, stop in pairwise(ends.tolist())
        for first in range(start, stop, size)
    ]


def score_block(
    decoder: Decoder,
    table: LinkTable,
    block: Ids,
    ends: Mapping[str, EndRows],
    cluster: Cluster,
    operation: str,
) -> Tensor:
    """Run a decoder, which is in host memory, on this rank's part of a block of edges, and return
    what it makes of them: [k, outputs]. Every rank must call it.

    The block is from :func:`blocks_of` a table with versions of both ends, whose rows ``ends`` has
    by type.
    """
    number = int(table.relations[block[0]]) if block.size else 0
    relation, parts = table.targets[number], parts_of(block, cluster)
    heads = ends[relation.src].fetch([table.src[part] for part in parts], operation)
    tails = ends[relation.dst].fetch([table.dst[part] for part in parts], operation)
    return decoder(heads, torch.full((len(heads),), number), tails)
