"""What ranks find when they expand their own nodes: frontiers, and sources by owner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    """The distinct sources of edges, ordered by owner.

    places: [edges], each edge's source in ``nodes``. bounds: [ranks + 1], each owner's part of
    ``nodes``. owners: [edges] int16.
    """

    places: Ids
    nodes: Ids
    bounds: Ids
    owners: NDArray[np.int16]

    def counts(self) -> Ids:
        """[ranks] int64: how many sources each rank owns."""
        return np.diff(self.bounds)

    def part(self, rank: int) -> slice:
        """Which of ``nodes`` a rank owns."""
        return slice(self.bounds[rank], self.bounds[rank + 1])


@dataclass(frozen=True)
class Wanted:
    """Some of the sources, which other ranks are asked for.

    at: by rank, their places among all. ids: by rank, [n] int64 global ids.
    """

    at: list[slice | Ids]
    ids: list[Ids]

    @classmethod
    def of(
        cls, sources: Sources, wanted: NDArray[np.bool_], marked: NDArray[np.bool_] | None
    ) -> Wanted:
        """Those of some ranks.

        Parameters
        ----------
        wanted: [ranks]. marked: [sources], which of theirs; None = all.
        """
        at: list[slice | Ids] = []
        for rank in range(wanted.size):
            part = sources.part(rank)
            if not wanted[rank]:
                at.append(slice(0, 0))
            elif marked is None:
                at.append(part)
            else:
                at.append(part.start + np.flatnonzero(marked[part]))
        return cls(at, [sources.nodes[each] for each in at])

    @property
    def counts(self) -> list[int]:
        """By rank, how many."""
        return [ids.size for ids in self.ids]

    def nodes(self) -> Ids:
        """[n] int64 global ids: those of rank 0 first."""
        return np.concatenate(self.ids)

    def number(self, columns: NDArray[Any], first: int) -> None:
        """Give them numbers from ``first`` on, in a table of all sources."""
        for at, ids in zip(self.at, self.ids, strict=True):
            columns[at] = np.arange(first, first + ids.size)
            first += ids.size


def sort_sources(
    sources: Ids,
    node_type: str,
    table: NDArray[np.int32],
    placement: Placement,
    kept: tuple[NDArray[np.bool_], int] | None = None,
) -> Sources:
    """The distinct ones among the sources of edges, by owner.

    Parameters
    ----------
    sources: [edges] int64 global ids of a type.
    table: [nodes of the type] int32, all unseen before and after.
    kept: [nodes of the type], those that count as a rank's own, and the rank.
    """
    rows, distinct = discover(sources, table, 0)
    forget(distinct, table)
    owners = placement.rank_of(node_type, distinct).astype(np.int16)
    if kept is not None:
        owners[kept[0][distinct]] = kept[1]
    order = np.argsort(owners, kind="stable")
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    bounds = np.zeros(placement.world + 1, np.int64)
    np.cumsum(np.bincount(owners, minlength=placement.world), out=bounds[1:])
    return Sources(place[rows], distinct[order], bounds, owners[rows])
