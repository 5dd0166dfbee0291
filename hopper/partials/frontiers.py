"""What ranks find when they expand their own nodes: frontiers, and sources by owner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopper.micrograph.frontier import discover, forget
from hopper.partition.placement import Placement

Ids = NDArray[np.int64]


class OwnFrontier:
    """This rank's nodes in order of discovery; rows stay once given."""

    def __init__(self, table: NDArray[np.int32]) -> None:
        self._table = table
        self._parts: list[Ids] = []
        self.size = 0

    def enter(self, ids: Ids) -> Ids:
        """[n] int64: the row of every id; unseen ids are added."""
        rows, fresh = discover(ids, self._table, self.size)
        self._parts.append(fresh)
        self.size += fresh.size
        return rows

    def rows(self, ids: Ids) -> Ids:
        """[n] int64: the rows of ids that were entered."""
        return self._table[ids].astype(np.int64)

    @property
    def nodes(self) -> Ids:
        """[size] int64 global ids."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate(self._parts) if self._parts else np.empty(0, np.int64)]
        return self._parts[0]


@dataclass(frozen=True)
class Sources:
    """The distinct sources of a hop, ordered by owner.

    places: [edges], each edge's source in ``nodes``. bounds: [ranks + 1], each owner's part of
    ``nodes``. owners: [edges] int16.
    """

    places: Ids
    nodes: Ids
    bounds: NDArray[np.int64]
    owners: NDArray[np.int16]

    def of(self, rank: int) -> Ids:
        """[n] int64 global ids: those of one owner."""
        return self.nodes[self.bounds[rank] : self.bounds[rank + 1]]

    def others(self, rank: int) -> Ids:
        """[n] int64 global ids: those of all owners but one."""
        return np.delete(self.nodes, np.s_[self.bounds[rank] : self.bounds[rank + 1]])

    def without(self, ranks: Sequence[int]) -> Sources:
        """The same edges, with none of some ranks' nodes; where these were, ``places`` mean
        nothing."""
        if not ranks:
            return self
        sizes = np.diff(self.bounds)
        owners = np.repeat(np.arange(sizes.size), sizes)
        kept = ~np.isin(owners, ranks)
        place = np.cumsum(kept) - 1
        sizes[list(ranks)] = 0
        bounds = np.concatenate(([0], np.cumsum(sizes)))
        return Sources(place[self.places], self.nodes[kept], bounds, self.owners)

    def rows(self, rank: int, own: OwnFrontier) -> Ids:
        """[edges]: each edge's source among a rank's own nodes and, behind them, the others'."""
        if not self.nodes.size:
            return np.zeros(self.places.size, np.int64)
        place = np.empty(self.nodes.size, np.int64)
        first, stop = self.bounds[rank], self.bounds[rank + 1]
        place[first:stop] = own.rows(self.of(rank))
        place[:first] = own.size + np.arange(first)
        place[stop:] = own.size + np.arange(first, self.nodes.size - (stop - first))
        return place[self.places]


def sort_sources(
    sources: Ids, node_type: str, table: NDArray[np.int32], placement: Placement
) -> Sources:
    """The distinct ones among the sources of edges, by owner.

    Parameters
    ----------
    sources: [edges] int64 global ids of a type.
    table: [nodes of the type] int32, all unseen before and after.
    """
    rows, distinct = discover(sources, table, 0)
    forget(distinct, table)
    owners = placement.rank_of(node_type, distinct).astype(np.int16)
    order = np.argsort(owners, kind="stable")
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    bounds = np.zeros(placement.world + 1, np.int64)
    np.cumsum(np.bincount(owners, minlength=placement.world), out=bounds[1:])
    return Sources(place[rows], distinct[order], bounds, owners[rows])
