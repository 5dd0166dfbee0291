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
from hopper.tasks import Decoder, LinkTable

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class EndRows:
    """Rows of nodes of a type, each on the rank that computed it.

    Attributes
    ----------
    nodes: [n] int64, ascending: global ids or versions of all these nodes.
    owners: [n], the ranks that have their rows.
    rows: [m, width], this rank's rows in the order of its nodes, in host memory.
    """

    cluster: Cluster
    nodes: Ids
    owners: NDArray[np.uint16]
    rows: Tensor

    @classmethod
    def of(cls, cluster: Cluster, nodes: Ids, ids: Ids, rows: Tensor, operation: str) -> EndRows:
        """Tell all ranks which rows this one has; every rank must call it.

        Parameters
        ----------
        nodes: [n] int64, ascending and the same on every rank.
        ids: [m] int64, ascending: those whose rows this rank has.
        """
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
        own = nodes[self.owners_of(nodes) == self.cluster.rank]
        rows = self.rows.index_select(0, torch.from_numpy(np.searchsorted(self.own, own)))
        return EndRows(self.cluster, nodes, self.owners_of(nodes), rows)

    def fetch(self, wanted: Sequence[Ids], operation: str) -> Tensor:
        """Return the rows [k, width] of ``wanted[rank]``; every rank must call it.

        Parameters
        ----------
        wanted: by rank, [k] int64, the nodes whose rows it needs; the same on every rank.
        """
        cluster, parts = self.cluster, list[Tensor]()
        for ids in map(np.unique, wanted):
            here = ids[self.owners_of(ids) == cluster.rank]
            parts.append(
                self.rows.index_select(0, torch.from_numpy(np.searchsorted(self.own, here)))
            )
        ids, places = np.unique(wanted[cluster.rank], return_inverse=True)
        rows = exchange_by_owner(cluster, parts, self.owners_of(ids), "partial", operation)
        return rows.index_select(0, torch.from_numpy(places))

    def fetch_everywhere(self, ids: Ids, operation: str) -> Tensor:
        """Return the rows [k, width] of nodes that all ranks need; every rank must call it."""
        return self.fetch([ids] * self.cluster.world, operation)


def exchange_by_owner(
    cluster: Cluster,
    parts: Sequence[Tensor],
    owners: NDArray[Any],
    cause: Cause,
    operation: str,
) -> Tensor:
    """Send ``parts[r]`` to every rank r, and return what this rank receives: [k, ...].

    Parameters
    ----------
    owners: [k], the rank that each received row comes from. Each rank sends its rows in order.
    """
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
    """Divide the rows of a table into blocks of at most ``size``, each of one relation.

    The blocks are row numbers, in ascending order.
    """
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
    """Run a decoder on this rank's part of a block of edges; every rank must call it.

    Parameters
    ----------
    decoder: a decoder in host memory.
    table: a table with versions of both ends.
    block: row numbers in the table, from :func:`blocks_of`.
    ends: by type, the rows of ends.

    Returns
    -------
    [k, outputs].
    """
    number = int(table.relations[block[0]]) if block.size else 0
    relation, parts = table.targets[number], parts_of(block, cluster)
    heads = ends[relation.src].fetch([table.src[part] for part in parts], operation)
    tails = ends[relation.dst].fetch([table.dst[part] for part in parts], operation)
    outputs: Tensor = decoder(heads, torch.full((len(heads),), number), tails)
    return outputs
