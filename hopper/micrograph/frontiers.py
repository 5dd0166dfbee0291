"""The frontiers of a subgraph, which grow from hop to hop, and the tables of their rows.

Frontiers have rows for versions. A version is a node as seen by some roots. Nodes that every root
sees alike have one version.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import numpy as np

from cache_server.draws.counter import mix
from cache_server.draws.spec import Drawn
from cache_server.kernel import kernel
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.micrograph.frontier_kernels import UNSEEN, discover

Versions = Ids
"""versions of nodes of one type, as :meth:`NodeVersions.versions` makes them"""
_SLOTS_A_ROW: Final = 2
_FEWEST_SLOTS: Final = 1024
MOST_DENSE: Final = 1 << 22
"""the most nodes of a type of which each has an entry in a table; of larger types only known nodes
have one, in a hash table, which takes up to twice as long"""


class DenseTable:
    """The frontier rows of ids below ``count``, all unseen at first, with an entry for every id."""

    def __init__(self, count: int) -> None:
        self._rows = np.full(count, UNSEEN, np.int32)

    def discover(self, versions: Ids, known: int) -> tuple[Ids, Ids]:
        """Give rows to versions that have none, in order of first appearance, from ``known`` on;
        return [n] int64 rows of all, and [new] int64 new versions."""
        return discover(versions, self._rows, known)

    def rows(self, known: Ids) -> Ids:
        """Return [n] int64: the rows of versions that have been discovered."""
        return self._rows[known].astype(np.int64)

    def clear(self, known: Ids) -> None:
        """Forget all rows, given [m] int64, all versions that have one."""
        self._rows[known] = UNSEEN


class HashTable:
    """The frontier rows of any int64, with entries for discovered versions only: at first for some
    distinct ones, in their order. Methods are those of :class:`DenseTable`."""

    def __init__(self, versions: Ids | None = None) -> None:
        self._keys = np.empty(_FEWEST_SLOTS, np.int64)
        self._rows = np.full(_FEWEST_SLOTS, UNSEEN, np.int64)
        self._size = 0
        if versions is not None:
            self.discover(versions, 0)

    def discover(self, versions: Ids, known: int) -> tuple[Ids, Ids]:
        """Give rows to new versions; see :meth:`DenseTable.discover`."""
        needed = _SLOTS_A_ROW * (self._size + versions.size)
        if needed > self._rows.size:
            slots = 1 << int(needed - 1).bit_length()
            keys, rows = np.empty(slots, np.int64), np.full(slots, UNSEEN, np.int64)
            _move(self._keys, self._rows, keys, rows)
            self._keys, self._rows = keys, rows
        version_rows, new_versions = _discover(versions, self._keys, self._rows, known)
        self._size += new_versions.size
        return version_rows, new_versions

    def rows(self, known: Ids) -> Ids:
        """Return [n] int64: the rows of discovered versions."""
        return _look_up(known, self._keys, self._rows)

    def find(self, versions: Ids) -> Ids:
        """Return :meth:`rows`; a version that has not been discovered is an IndexError."""
        rows = self.rows(versions)
        missing = int(np.count_nonzero(rows == UNSEEN))
        if missing:
            raise IndexError(f"{missing} of {rows.size} ids are not among {self._size}")
        return rows

    def clear(self, known: Ids) -> None:
        """Clear the whole table."""
        if self._size:
            self._rows.fill(UNSEEN)
            self._size = 0


RowTable = DenseTable | HashTable
"""a table of the frontier rows of a type's nodes or versions"""


class NodeVersions:
    """The versions of a sampler whose draws are the same for every root, given per node type
    [count] int64, the original id of every global id.

    A node's only version is its global id. Samplers whose draws depend on the root override these
    methods.
    """

    version_dtype: ClassVar[np.dtype[Any]] = np.dtype(np.int32)
    """the dtype that every version fits"""

    def __init__(self, original_ids: Mapping[str, Ids]) -> None:
        self.original_ids = dict(original_ids)

    def versions(self, node_type: str, roots: Ids) -> Versions:
        """Return [n] int64: the versions of some roots."""
        return roots

    def versions_at(self, node_type: str, nodes: Ids, times: Ids | None) -> Versions:
        """Return [n] int64: the versions of nodes for roots of the given times, [n] int64; None if
        roots have no times."""
        return nodes

    def nodes_of(self, node_type: str, versions: Versions) -> Ids:
        """Return [n] int64: the global ids of versions."""
        return versions

    def times_of(self, node_type: str, versions: Versions) -> Ids | None:
        """Return [n] int64: the times of the roots that versions are for; None = no times."""
        return None

    def in_versions(self, relation: Relation, destinations: Versions, drawn: Drawn) -> Drawn:
        """Replace the global ids of the sources drawn for some destinations by their versions."""
        return drawn

    def row_table(self, node_type: str) -> RowTable:
        """Make an empty table for the versions of a type's nodes."""
        count = self.original_ids[node_type].size
        return DenseTable(count) if count <= MOST_DENSE else HashTable()

    def nodes_and_times(
        self, versions: Mapping[str, Versions]
    ) -> tuple[dict[str, Ids], dict[str, Ids]]:
        """Return, by node type, the global ids of versions, and their roots' times if any."""
        nodes = {node_type: self.nodes_of(node_type, ids) for node_type, ids in versions.items()}
        times = {node_type: self.times_of(node_type, ids) for node_type, ids in versions.items()}
        return nodes, {t: of_type for t, of_type in times.items() if of_type is not None}


class Frontier:
    """The versions of a node type that are known at a hop, in order of discovery. A version never
    changes its row. The table is empty at first."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._parts: list[Ids] = []
        self.size = 0

    def enter(self, versions: Ids) -> Ids:
        """Return [n] int64: the rows of some versions. Unseen versions get a row first."""
        rows, unseen = self._table.discover(versions, self.size)
        self._parts.append(unseen)
        self.size += unseen.size
        return rows

    def rows(self, versions: Ids) -> Ids:
        """Return [n] int64: the rows of versions that have been entered."""
        return self._table.rows(versions)

    @property
    def versions(self) -> Ids:
        """[size] int64, in order of rows."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate([np.empty(0, np.int64), *self._parts])]
        return self._parts[0]


class FrontierPool:
    """Makes frontiers by node type, and uses their tables again. Several threads may do so at
    once."""

    def __init__(self) -> None:
        self._spare_tables = deque[dict[str, RowTable]]()

    @contextmanager
    def begin(
        self, node_types: Iterable[str], make_table: Callable[[str], RowTable]
    ) -> Iterator[dict[str, Frontier]]:
        """Make empty frontiers of the same types at every call, with spare tables or new ones. They
        cannot grow after the context has ended."""
        try:
            tables = self._spare_tables.pop()
        except IndexError:
            tables = {node_type: make_table(node_type) for node_type in node_types}
        frontiers = {node_type: Frontier(table) for node_type, table in tables.items()}
        try:
            yield frontiers
        finally:
            for node_type, table in tables.items():
                table.clear(frontiers[node_type].versions)
            self._spare_tables.append(tables)


@kernel(inline="always")
def _slot(key: np.int64, keys: Ids, rows: Ids) -> np.int64:
    """Return the slot of a key, or the free slot for it; at most half of all slots are in use."""
    mask = np.uint64(rows.size - 1)
    slot = mix(np.uint64(key)) & mask
    while rows[slot] != UNSEEN and keys[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return np.int64(slot)


@kernel
def _discover(versions: Ids, keys: Ids, rows: Ids, known: int) -> tuple[Ids, Ids]:
    """Do the work of :meth:`HashTable.discover` in a table that is large enough."""
    version_rows = np.empty(versions.size, np.int64)
    new_versions = np.empty(versions.size, np.int64)
    new = 0
    for i in range(versions.size):
        slot = _slot(versions[i], keys, rows)
        if rows[slot] == UNSEEN:
            keys[slot], rows[slot] = versions[i], known + new
            new_versions[new] = versions[i]
            new += 1
        version_rows[i] = rows[slot]
    return version_rows, new_versions[:new].copy()


@kernel
def _look_up(known: Ids, keys: Ids, rows: Ids) -> Ids:
    """Return [n] int64: the rows of versions that the table contains."""
    known_rows = np.empty(known.size, np.int64)
    for i in range(known.size):
        known_rows[i] = rows[_slot(known[i], keys, rows)]
    return known_rows


@kernel
def _move(keys: Ids, rows: Ids, new_keys: Ids, new_rows: Ids) -> None:
    """Copy all entries to a larger table."""
    for i in range(rows.size):
        if rows[i] != UNSEEN:
            slot = _slot(keys[i], new_keys, new_rows)
            new_keys[slot], new_rows[slot] = keys[i], rows[i]
