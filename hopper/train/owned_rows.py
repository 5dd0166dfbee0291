"""Rows of nodes that stay with their owners, and are handed round where edges are judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster
from hopper.tasks import EdgeDecoder, LinkTable

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class OwnedRows:
    """The rows of a type that this rank has.

    Attributes
    ----------
    ids: [n] int64, ascending: global ids, or versions. rows: [n, width], in host memory.
    """

    ids: Ids
    rows: Tensor

    def spread(self, cluster: Cluster, ids: Ids, operation: str) -> Tensor:
        """[k, width]: the rows of some nodes, which every rank asks for; collective."""
        found = self.rows.new_zeros(ids.size, self.rows.shape[1])
        places = torch.from_numpy(places_among(self.ids, ids))
        here = places >= 0
        found[here] = self.rows.index_select(0, places[here])
        # Every node has one owner, so nothing is rounded.
        cluster.all_reduce(found, "partial", operation)
        return found


def part_of(cluster: Cluster, count: int) -> slice:
    """This rank's part of so many edges that all ranks know."""
    return slice(*(count * (cluster.rank + step) // cluster.world for step in (0, 1)))


def blocks_of(table: LinkTable, size: int) -> list[Ids]:
    """Places in a table, so many at a time, each time of one relation: ids ascend from one to the
    next."""
    ends = np.searchsorted(table.relations, np.arange(len(table.targets) + 1))
    return [
        np.arange(first, min(first + size, stop))
        for start, stop in pairwise(ends.tolist())
        for first in range(start, stop, size)
    ]


def judge(
    decoder: EdgeDecoder,
    table: LinkTable,
    block: Ids,
    owned: Mapping[str, OwnedRows],
    cluster: Cluster,
    operation: str,
) -> Tensor:
    """[k, outputs]: what a decoder makes of this rank's part of a block; collective.

    Parameters
    ----------
    decoder: in host memory. table: with versions of ends.
    block: places in the table, as of :func:`blocks_of`.
    owned: by type, the rows of ends.
    """
    number = int(table.relations[block[0]]) if block.size else 0
    relation = table.targets[number]
    heads = owned[relation.src].spread(cluster, table.src[block], operation)
    tails = owned[relation.dst].spread(cluster, table.dst[block], operation)
    mine = part_of(cluster, block.size)
    of = torch.full((len(heads[mine]),), number)
    found: Tensor = decoder(heads[mine], of, tails[mine])
    return found


def places_among(known: Ids, wanted: Ids) -> Ids:
    """[m] int64: places of ids among ascending ones; -1 of those that are not there."""
    if not known.size:
        return np.full(wanted.size, -1, np.int64)
    places = np.searchsorted(known, wanted)
    return np.where(np.take(known, places, mode="clip") == wanted, places, -1)
