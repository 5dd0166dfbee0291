"""Rows of nodes that stay with their owners and are sent to all ranks to predict edges."""

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
    """This rank's rows of a type.

    Attributes
    ----------
    ids: [n] int64, ascending: global ids or versions.
    rows: [n, width], in host memory.
    """

    ids: Ids
    rows: Tensor

    def spread(self, cluster: Cluster, ids: Ids, operation: str) -> Tensor:
        """Give every rank the rows of some nodes: [k, width]; every rank must name the same."""
        rows = self.rows.new_zeros(ids.size, self.rows.shape[1])
        places = torch.from_numpy(places_among(self.ids, ids))
        is_here = places >= 0
        rows[is_here] = self.rows.index_select(0, places[is_here])
        # Every node has one owner, so the sum adds zeros and rounds nothing.
        cluster.all_reduce(rows, "partial", operation)
        return rows


def part_of(cluster: Cluster, count: int) -> slice:
    """Return this rank's part of ``count`` edges that all ranks know."""
    return slice(*(count * (cluster.rank + step) // cluster.world for step in (0, 1)))


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


def judge(
    decoder: EdgeDecoder,
    table: LinkTable,
    block: Ids,
    owned: Mapping[str, OwnedRows],
    cluster: Cluster,
    operation: str,
) -> Tensor:
    """Run a decoder on this rank's part of a block of edges; every rank must call it.

    Parameters
    ----------
    decoder: a decoder in host memory.
    table: a table with versions of both ends.
    block: row numbers in the table, from :func:`blocks_of`.
    owned: by type, the rows of ends.

    Returns
    -------
    [k, outputs].
    """
    number = int(table.relations[block[0]]) if block.size else 0
    relation = table.targets[number]
    heads = owned[relation.src].spread(cluster, table.src[block], operation)
    tails = owned[relation.dst].spread(cluster, table.dst[block], operation)
    own_part = part_of(cluster, block.size)
    relations = torch.full((len(heads[own_part]),), number)
    outputs: Tensor = decoder(heads[own_part], relations, tails[own_part])
    return outputs


def places_among(known: Ids, wanted: Ids) -> Ids:
    """Return [m] int64: the indices of wanted ids among ascending known ones; -1 for unknown
    ids."""
    if not known.size:
        return np.full(wanted.size, -1, np.int64)
    places = np.searchsorted(known, wanted)
    return np.where(np.take(known, places, mode="clip") == wanted, places, -1)
