"""The results of a rank that expands its own nodes: frontiers, and sources by owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.micrograph.frontiers import RowTable

Ids = NDArray[np.int64]


class OwnFrontier:
    """Versions of this rank's nodes in order of discovery. A version never changes its row."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._parts: list[Ids] = []
        self.size = 0

    def enter(self, versions: Ids) -> Ids:
        """Return [n] int64: the rows of some versions. Unseen versions get a row first."""
        rows, fresh = self._table.discover(versions, self.size)
        self._parts.append(fresh)
        self.size += fresh.size
        return rows

    def rows(self, versions: Ids) -> Ids:
        """Return [n] int64: the rows of versions that have been entered."""
        return self._table.rows(versions)

    @property
    def versions(self) -> Ids:
        """[size] int64, in order of rows."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate(self._parts) if self._parts else np.empty(0, np.int64)]
        return self._parts[0]


@dataclass(frozen=True)
class Sources:
    """The distinct sources of edges, ordered by owner.

    Attributes
    ----------
    places: [edges], the index of each edge's source in ``versions``.
    versions: [sources].
    bounds: [ranks + 1], where each owner's part of ``versions`` begins and ends.
    owners: [edges] int16, the rank that owns each edge's source.
    """

    places: Ids
    versions: Ids
    bounds: Ids
    owners: NDArray[np.int16]

    def counts(self) -> Ids:
        """Return [ranks] int64: how many sources each rank owns."""
        return np.diff(self.bounds)

    def part(self, rank: int) -> slice:
        """Return the part of ``versions`` that a rank owns."""
        return slice(self.bounds[rank], self.bounds[rank + 1])


@dataclass(frozen=True)
class Wanted:
    """The sources whose rows this rank asks others for.

    Attributes
    ----------
    places: by rank, their indices among all sources.
    versions: by rank, [n] int64.
    """

    places: list[slice | Ids]
    versions: list[Ids]

    @classmethod
    def of(
        cls, sources: Sources, wanted: NDArray[np.bool_], marked: NDArray[np.bool_] | None
    ) -> Wanted:
        """Select sources of some ranks.

        Parameters
        ----------
        wanted: [ranks], the ranks to ask.
        marked: [sources], which of their sources to ask for; None = all.
        """
        places: list[slice | Ids] = []
        for rank in range(wanted.size):
            part = sources.part(rank)
            if not wanted[rank]:
                places.append(slice(0, 0))
            elif marked is None:
                places.append(part)
            else:
                places.append(part.start + np.flatnonzero(marked[part]))
        return cls(places, [sources.versions[of_rank] for of_rank in places])

    @property
    def counts(self) -> list[int]:
        """Return how many sources each rank is asked for."""
        return [versions.size for versions in self.versions]

    def all_versions(self) -> Ids:
        """Return [n] int64: the versions of all ranks, those of rank 0 first."""
        return np.concatenate(self.versions)

    def number(self, columns: NDArray[Any], first: int) -> None:
        """Write the numbers from ``first`` on at these sources' places in ``columns``.

        Parameters
        ----------
        columns: [sources], updated in place.
        """
        for places, versions in zip(self.places, self.versions, strict=True):
            columns[places] = np.arange(first, first + versions.size)
            first += versions.size


def sort_sources(
    sources: Ids, table: RowTable, world: int, owners_of: Callable[[Ids], NDArray[np.int16]]
) -> Sources:
    """Find the distinct sources of edges and order them by owner.

    Parameters
    ----------
    sources: [edges] int64 versions of nodes of a type.
    table: the type's table, which is empty before and after.
    world: number of ranks.
    owners_of: maps versions to the ranks that own them, [n] int16.
    """
    rows, distinct = table.discover(sources, 0)
    table.clear(distinct)
    owners = owners_of(distinct)
    order = np.argsort(owners, kind="stable")
    rank_order = np.empty(order.size, np.int64)
    rank_order[order] = np.arange(order.size)
    bounds = np.zeros(world + 1, np.int64)
    np.cumsum(np.bincount(owners, minlength=world), out=bounds[1:])
    return Sources(rank_order[rows], distinct[order], bounds, owners[rows])
