"""What ranks find when they expand their own nodes: frontiers, and sources by owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.micrograph.row_tables import RowTable

Ids = NDArray[np.int64]


class OwnFrontier:
    """Versions of this rank's nodes in order of discovery; rows stay once given."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._parts: list[Ids] = []
        self.size = 0

    def enter(self, versions: Ids) -> Ids:
        """[n] int64: the row of every one; unseen ones are added."""
        rows, fresh = self._table.discover(versions, self.size)
        self._parts.append(fresh)
        self.size += fresh.size
        return rows

    def rows(self, versions: Ids) -> Ids:
        """[n] int64: the rows of versions that were entered."""
        return self._table.rows(versions)

    @property
    def versions(self) -> Ids:
        """[size] int64."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate(self._parts) if self._parts else np.empty(0, np.int64)]
        return self._parts[0]


@dataclass(frozen=True)
class Sources:
    """The distinct sources of edges, ordered by owner.

    places: [edges], each edge's source in ``versions``. bounds: [ranks + 1], each owner's part of
    ``versions``. owners: [edges] int16.
    """

    places: Ids
    versions: Ids
    bounds: Ids
    owners: NDArray[np.int16]

    def counts(self) -> Ids:
        """[ranks] int64: how many sources each rank owns."""
        return np.diff(self.bounds)

    def part(self, rank: int) -> slice:
        """Which of ``versions`` a rank owns."""
        return slice(self.bounds[rank], self.bounds[rank + 1])


@dataclass(frozen=True)
class Wanted:
    """Some of the sources, which other ranks are asked for.

    at: by rank, their places among all. versions: by rank, [n] int64.
    """

    at: list[slice | Ids]
    versions: list[Ids]

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
        return cls(at, [sources.versions[each] for each in at])

    @property
    def counts(self) -> list[int]:
        """By rank, how many."""
        return [own.size for own in self.versions]

    def all_versions(self) -> Ids:
        """[n] int64: those of rank 0 first."""
        return np.concatenate(self.versions)

    def number(self, columns: NDArray[Any], first: int) -> None:
        """Give them numbers from ``first`` on, in a table of all sources."""
        for at, own in zip(self.at, self.versions, strict=True):
            columns[at] = np.arange(first, first + own.size)
            first += own.size


def sort_sources(
    sources: Ids, table: RowTable, world: int, owners_of: Callable[[Ids], NDArray[np.int16]]
) -> Sources:
    """The distinct ones among the sources of edges, by owner.

    Parameters
    ----------
    sources: [edges] int64 versions of nodes of a type.
    table: of the type, all unseen before and after.
    world: number of ranks.
    owners_of: [n] int16, the ranks that own versions.
    """
    rows, distinct = table.discover(sources, 0)
    table.clear(distinct)
    owners = owners_of(distinct)
    order = np.argsort(owners, kind="stable")
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    bounds = np.zeros(world + 1, np.int64)
    np.cumsum(np.bincount(owners, minlength=world), out=bounds[1:])
    return Sources(place[rows], distinct[order], bounds, owners[rows])
