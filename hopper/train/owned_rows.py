"""Rows of nodes that stay with their owners, and are handed round where edges are scored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class OwnedRows:
    """The rows of a type that this rank has.

    Attributes
    ----------
    ids: [n] int64 global ids, ascending. rows: [n, width], in host memory.
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


def places_among(known: Ids, wanted: Ids) -> Ids:
    """[m] int64: places of ids among ascending ones; -1 of those that are not there."""
    if not known.size:
        return np.full(wanted.size, -1, np.int64)
    places = np.searchsorted(known, wanted)
    return np.where(np.take(known, places, mode="clip") == wanted, places, -1)
