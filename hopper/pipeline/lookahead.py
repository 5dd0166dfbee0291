"""Keeps rows of other servers that coming iterations will read again, and reads rows of tables that
do not fit memory for several iterations at once (:mod:`hopper.pipeline.sweep`).

A plan tells which rows its iteration reads. So, as far as plans reach, the best rows to keep are
known: those whose next use comes soonest (Belady, A study of replacement algorithms for a
virtual-storage computer, IBM Systems Journal 5(2), 1966).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.config import Pipeline as PipelineConfig
from hopper.features import PartitionedRows, RowCache
from hopper.features.copy_rows import copy_rows
from hopper.graph.layout import stored_features
from hopper.graph.topology import Ids
from hopper.pipeline.sweep import Sweep

Numbers = NDArray[np.int32]
"""numbers of iterations"""

_NEVER: Final = np.iinfo(np.int32).max
"""stands for no use: larger than the number of any iteration"""
_NOWHERE: Final = -1


class KeptRows(RowCache):
    """A cache of one node type's rows that coming iterations read again.

    Each node of the type takes twelve bytes, besides ``room`` rows at most.
    """

    evicts = True

    def __init__(self, count: int, dim: int, dtype: np.dtype[Any], room: int) -> None:
        room = min(room, count)
        super().__init__(count, room, dim, dtype)
        self._next_use = np.full(room, _NEVER, np.int32)
        self._was_read = np.zeros(room, np.bool_)
        """whether each slot was read in the current iteration"""
        self._last_use = np.full(count, _NOWHERE, np.int32)
        """number of the last foreseen iteration that uses a node"""
        self._foreseen: deque[tuple[int, Ids, Numbers]] = deque()
        """by iteration: its number, its nodes in ascending order, and their next uses"""
        self._wanted = np.full(count, _NEVER, np.int32)
        """next uses of the current iteration's nodes that will be kept"""
        self._now: Ids = np.empty(0, np.int64)
        """the nodes with an entry in ``_wanted``"""

    def foresee(self, number: int, nodes: Ids) -> None:
        """Take note of the distinct nodes, ascending, that a coming iteration reads, whose number
        is larger than those before."""
        last_use = self._last_use[nodes]
        for earlier, earlier_nodes, next_use in self._foreseen:
            reused = nodes[last_use == earlier]
            next_use[np.searchsorted(earlier_nodes, reused)] = number
        self._last_use[nodes] = number
        self._foreseen.append((number, nodes, np.full(nodes.size, _NEVER, np.int32)))

    def begin(self) -> None:
        """Begin the next foreseen iteration: choose rows to keep, and drop others for them."""
        number, nodes, next_use = self._foreseen.popleft()
        self._last_use[nodes[self._last_use[nodes] == number]] = _NOWHERE
        slots = self._slot_of[nodes]
        is_kept = slots >= 0
        self._next_use[slots[is_kept]] = next_use[is_kept]
        used_slots = np.flatnonzero((self._id_in >= 0) & (self._next_use < _NEVER))
        is_new = ~is_kept & (next_use < _NEVER)
        new_nodes, new_uses = nodes[is_new], next_use[is_new]
        uses = np.concatenate((self._next_use[used_slots], new_uses))
        candidates = np.concatenate((self._id_in[used_slots], new_nodes))
        # Rows with the soonest next use are kept, and the smaller ids of those with the same use.
        is_chosen = np.zeros(uses.size, np.bool_)
        is_chosen[np.lexsort((candidates, uses))[: len(self._rows)]] = True
        read_now = np.zeros(len(self._rows), np.bool_)
        read_now[slots[is_kept]] = True
        dropped = used_slots[~is_chosen[: used_slots.size]]
        self._drop(dropped[~read_now[dropped]])
        # This iteration still reads these; they are dropped after that.
        self._next_use[dropped[read_now[dropped]]] = _NEVER
        is_taken = is_chosen[used_slots.size :]
        self._now = new_nodes[is_taken]
        self._wanted[self._now] = new_uses[is_taken]

    def end(self) -> None:
        """End the iteration: drop rows that are not used again."""
        self._drop(np.flatnonzero((self._id_in >= 0) & (self._next_use == _NEVER)))
        self._wanted[self._now] = _NEVER
        self._was_read[:] = False

    def copy(self, slots: NDArray[np.int32], out: NDArray[Any], places: Ids) -> None:
        """Copy the rows in ``slots`` to ``out[places]``."""
        super().copy(slots, out, places)
        self._was_read[slots] = True

    def take_missed(self, ids: Ids, table: NDArray[Any], places: Ids) -> None:
        """Keep the fetched rows in ``table[places]`` that were chosen, as far as there is room."""
        is_chosen = (self._wanted[ids] < _NEVER) & (self._slot_of[ids] < 0)
        nodes, first = np.unique(ids[is_chosen], return_index=True)
        free = np.flatnonzero(self._id_in < 0)
        if nodes.size > free.size:
            # Rows that were read for the last time make room.
            self._drop(np.flatnonzero(self._was_read & (self._next_use == _NEVER)))
            free = np.flatnonzero(self._id_in < 0)
        nodes, first = nodes[: free.size], first[: free.size]
        slots = free[: nodes.size].astype(np.int32)
        copy_rows(table, places[is_chosen][first], self._rows, slots)
        self._slot_of[nodes], self._id_in[slots] = slots, nodes
        self._next_use[slots] = self._wanted[nodes]

    def _drop(self, slots: NDArray[np.integer[Any]]) -> None:
        self._slot_of[self._id_in[slots]] = _NOWHERE
        self._id_in[slots], self._next_use[slots] = _NOWHERE, _NEVER
        self._was_read[slots] = False


class Lookahead:
    """Reads rows of all node types together with those of coming iterations.

    Parameters
    ----------
    rows: reads through kept rows of other servers from the first :meth:`foresee` on.
    tables: the node types, and relations as ``src/rel/dst``, whose features are read.
    config: node types share ``lookahead_memory`` in proportion to the bytes that the iterations of
        the first :meth:`foresee` read.
    reads_others: whether rows of other servers are read.

    Attributes
    ----------
    reach: how many iterations after the next one to foresee.
    """

    def __init__(
        self,
        rows: PartitionedRows,
        tables: Iterable[str],
        config: PipelineConfig,
        reads_others: bool = True,
    ) -> None:
        self._rows, self._nbytes = rows, config.lookahead_nbytes
        self._kept: dict[str, KeptRows] | None = None
        self._number = 0
        self._sweep = Sweep(rows, tables)
        self._keeps = reads_others and rows.remote is not None and config.lookahead > 0
        self.reach = max(self._sweep.reach, config.lookahead if self._keeps else 0)

    def foresee(self, iterations: Sequence[Mapping[str, Ids]], *, own_only: bool = False) -> None:
        """Take note of the rows that coming iterations read: for each, by table of features, the
        distinct nodes, ascending.

        Rows that a cache holds permanently are left out, and with ``own_only`` those of other
        servers.
        """
        if not self.reach:
            return
        rows, device = self._rows, self._rows.on_device
        # What a device evicts before its next use is not known here.
        early_own_only = own_only or (device is not None and device.evicts)
        remote = [dict[str, Ids]() for _ in iterations]
        early = [dict[str, Ids]() for _ in iterations]
        for reads, others, early_ids in zip(iterations, remote, early, strict=True):
            for table, nodes in reads.items():
                ids = rows.uncached(table, nodes)
                is_local = rows.is_local(table, ids)
                others[table] = ids[~is_local]
                early_ids[table] = ids[is_local] if early_own_only else ids
        self._sweep.foresee(early)
        if own_only or not self._keeps:
            return
        if self._kept is None:
            swept = self._sweep.tables
            self._kept = self._make_caches(
                [{t: ids for t, ids in reads.items() if t not in swept} for reads in remote]
            )
            rows.attach_prefetch(self._kept)
        for reads in remote:
            for table, kept in self._kept.items():
                kept.foresee(self._number, reads.get(table, np.empty(0, np.int64)))
            self._number += 1

    @property
    def reads_early(self) -> bool:
        """Whether rows of coming iterations are read with those of the next one."""
        return bool(self._sweep.tables)

    def read_early(self, rows: PartitionedRows) -> PartitionedRows:
        """Read what is to be read now for several iterations; return a view of ``rows`` from which
        the next iteration's are read. ``rows`` count what is read."""
        return self._sweep.turn(rows)

    @contextmanager
    def turn(self, rows: PartitionedRows) -> Iterator[None]:
        """Let the next iteration's rows be read during the block, from the view of them."""
        with rows.one_operation():
            caches = (self._kept or {}).values()
            for kept in caches:
                kept.begin()
            yield
            for kept in caches:
                kept.end()

    def _make_caches(self, window: Sequence[Mapping[str, Ids]]) -> dict[str, KeptRows]:
        schema, formats, bytes_read = self._rows.graph.schema, {}, {}
        for table in sorted({table for reads in window for table in reads}):
            stored = stored_features(schema.table(table))
            assert stored is not None
            formats[table] = stored.columns, stored.dtype
            count = sum(reads[table].size for reads in window if table in reads)
            bytes_read[table] = count * stored.columns * stored.dtype.itemsize
        total = max(1, sum(bytes_read.values()))
        return {
            table: KeptRows(
                schema.table(table).count,
                dim,
                dtype,
                self._nbytes * bytes_read[table] // total // (dim * dtype.itemsize),
            )
            for table, (dim, dtype) in formats.items()
        }
