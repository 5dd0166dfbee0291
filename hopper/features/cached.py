"""Rows of other servers of which some are kept here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hopper.array_module import Array
from hopper.features.source import RemoteSource, RowKind
from hopper.traffic import Traffic


class HeldRows(Protocol):
    """Some rows of one node type, as :class:`hopper.hetero.row_cache.RowCache` keeps them."""

    @property
    def dim(self) -> int:
        """Of a row."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of a row."""

    @property
    def evicts(self) -> bool:
        """Whether rows make room for others."""

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int32]:
        """[n]: where the rows of ids are; -1 = not here."""

    def copy(self, slots: NDArray[np.int32], out: NDArray[Any], places: NDArray[np.int64]) -> None:
        """``out[places]`` become the rows in these places."""

    def missed(
        self, ids: NDArray[np.int64], table: NDArray[Any], places: NDArray[np.int64]
    ) -> None:
        """Take note of rows that were asked for and are not here, now in ``table[places]``."""


class Lookups(NamedTuple):
    """How many rows were asked for, and found or not."""

    hits: int = 0
    misses: int = 0

    def plus(self, other: Lookups) -> Lookups:
        """The sum."""
        return Lookups(self.hits + other.hits, self.misses + other.misses)


def look_up(
    held: HeldRows,
    ids: NDArray[np.int64],
    out: NDArray[Any],
    places: NDArray[np.int64],
    fetch: Callable[[NDArray[np.int64], NDArray[Any], NDArray[np.int64]], None],
) -> Lookups:
    """``out[places]`` become the rows of [n] int64 ``ids``: those that are held, and fetched ones.

    Parameters
    ----------
    fetch: as this function, of ids that are not held.
    """
    slots = held.find(ids)
    here = slots >= 0
    held.copy(slots[here], out, places[here])
    missing, gaps = ids[~here], places[~here]
    if missing.size:
        fetch(missing, out, gaps)
        held.missed(missing, out, gaps)
    return Lookups(ids.size - missing.size, missing.size)


class Counts:
    """How many rows were looked for, by node type."""

    def __init__(self) -> None:
        self.lookups: dict[str, Lookups] = {}


class CountedLookups:
    """Rows that are held, and how many of those that were looked for were found.

    Parameters
    ----------
    held: by node type.
    counts: where lookups are counted.
    """

    def __init__(self, held: Mapping[str, HeldRows], counts: Counts | None = None) -> None:
        self._held = dict(held)
        self._counts = counts or Counts()

    @property
    def node_types(self) -> list[str]:
        """Those of which rows are held, in order of name."""
        return sorted(self._held)

    def look_up(
        self, node_type: str, ids: Array, out: Array, places: Array, fetch: Callable[..., None]
    ) -> None:
        """:func:`look_up` among the rows of a type that are held."""
        found = look_up(self._held[node_type], ids, out, places, fetch)
        lookups = self._counts.lookups
        lookups[node_type] = lookups.get(node_type, Lookups()).plus(found)

    def take_lookups(self) -> dict[str, Lookups]:
        """By node type, since the last call; starts from zero again."""
        taken, self._counts.lookups = self._counts.lookups, {}
        return dict.fromkeys(self.node_types, Lookups()) | taken


class CachedRows(CountedLookups):
    """A source of remote rows that asks another one for those that it does not have.

    Rows come out as they are stored, so nothing but the
    traffic tells whether there is a cache.

    Parameters
    ----------
    remote: where missing rows come from.
    held: by node type; features of other types, and labels, are not looked for.
    """

    def __init__(self, remote: RemoteSource, held: Mapping[str, HeldRows]) -> None:
        super().__init__(held)
        self._remote = remote

    def ask_first(self, held: Mapping[str, HeldRows]) -> CachedRows:
        """From now on look for what is missing here among other rows that are held."""
        found = CachedRows(self._remote, held)
        self._remote = found
        return found

    def not_kept(self, node_type: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of [n] int64 ids whose rows are not here for good."""
        held = self._held.get(node_type)
        return ids if held is None or held.evicts else ids[held.find(ids) < 0]

    def columns(self, node_type: str, ids: NDArray[np.int64], server: int) -> NDArray[Any]:
        """See :class:`RemoteSource`; none are held."""
        return self._remote.columns(node_type, ids, server)

    def count_into(self, traffic: Traffic) -> None:
        """See :class:`RemoteSource`."""
        self._remote.count_into(traffic)

    def one_operation(self) -> AbstractContextManager[None]:
        """See :class:`RemoteSource`."""
        return self._remote.one_operation()

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """See :class:`FeatureSource`."""
        held = self._held.get(node_type)
        if kind != "features" or held is None:
            return self._remote.gather(kind, node_type, ids)
        out = np.empty((ids.size, held.dim), held.dtype)
        self.fill(kind, node_type, ids, out, np.arange(ids.size))
        return out

    def fill(
        self,
        kind: RowKind,
        node_type: str,
        ids: NDArray[np.int64],
        out: NDArray[Any],
        places: NDArray[np.int64],
    ) -> None:
        """See :class:`RowFiller`."""
        held = self._held.get(node_type)
        if kind != "features" or held is None:
            self._remote.fill(kind, node_type, ids, out, places)
            return
        self.look_up(node_type, ids, out, places, partial(self._remote.fill, kind, node_type))
