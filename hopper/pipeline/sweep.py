"""Reads rows of tables that do not fit memory in the order of their files, for several iterations.

Rows of an iteration lie apart, and a row is often a small part of a page: reading them alone reads
many times their bytes. But the rows of coming iterations are known as far as plans reach. So a
table is divided into as many parts as iterations are looked ahead. Each iteration reads one part,
from its beginning to its end, for all iterations until the part's next turn. Rows wait in temporary
files. (DiskGNN also packs the rows of coming mini-batches in files, of all of them before training;
Liu et al., Proc. ACM Manag. Data 3(1), 2025.)
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import IO, Any, Final
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from cache_server.process import return_freed_memory
from hopper.errors import RequestError
from hopper.features import PartitionedRows, ReadyRows, RowCounts, distinct
from hopper.graph.topology import Ids

_PARTS: Final = 16
_BYTES_AT_ONCE: Final = 8 << 20


class Sweep:
    """Reads features of the node types of which a server's own do not fit memory.

    Parameters
    ----------
    tables: the node types, and relations as ``src/rel/dst``, whose features are read.

    Attributes
    ----------
    tables: those that are swept.
    reach: how many iterations after the next one to foresee.
    """

    def __init__(self, rows: PartitionedRows, tables: Iterable[str]) -> None:
        self._rows = rows
        self.tables: dict[str, SweptTable | None] = {
            name: None for name in tables if rows.local.is_beyond_memory(name)
        }
        self.reach = _PARTS - 1 if self.tables else 0

    def foresee(self, iterations: Sequence[Mapping[str, Ids]]) -> None:
        """Take note of the rows that coming iterations read: for each, by table, the distinct ids,
        ascending."""
        for name, swept in list(self.tables.items()):
            ids = [reads.get(name, np.empty(0, np.int64)) for reads in iterations]
            if swept is None:
                swept = self._start(name, max(one.size for one in ids))
                if swept is None:
                    del self.tables[name]
                    continue
                self.tables[name] = swept
            for one in ids:
                swept.foresee(one)

    def _start(self, name: str, largest: int) -> SweptTable | None:
        """Begin with a table of which an iteration reads so many rows; None = it does not pay."""
        book, own = self._rows.graph.book, self._rows.graph.stored(name, self._rows.server).count
        dim, dtype = self._rows.local.row_format("features", name)
        # Waiting rows, on average half of those in reach, take no more room than own ones.
        parts = min(_PARTS, 2 * own // max(1, largest) - 1)
        pieces = largest * dim * dtype.itemsize // _BYTES_AT_ONCE + 1
        return SweptTable(name, book.offsets[name], parts, pieces) if parts > 1 else None

    def turn(self, rows: PartitionedRows) -> PartitionedRows:
        """Return a view of rows from which the next iteration's are read. ``rows`` counts what is
        read for it."""
        if not self.tables:
            return rows
        ready = {name: swept.turn(rows) for name, swept in self.tables.items() if swept}
        saved = sum(one.saved for one in ready.values())
        rows.rows.add(RowCounts(cached=saved, remote_unique=-saved))
        # Memory is short here. Plans that were made and used leave holes, which may be as large.
        return_freed_memory()
        return rows.with_ready(ready)


class SweptTable:
    """Rows of a table, each read in time for the iterations that were foreseen to need it.

    Parameters
    ----------
    offsets: [servers + 1] int64, the first id of each server.
    parts: of each server's ids; each is read for as many iterations at most.
    pieces: of a part; they are in memory one after the other.
    """

    def __init__(self, name: str, offsets: Ids, parts: int, pieces: int) -> None:
        self._name, self._offsets, self._turn = name, offsets, 0
        self._parts, self._pieces = parts, pieces
        self._read_until = np.zeros(parts, np.int64)
        """by part, the number of the first iteration whose rows have not been read"""
        self._coming: deque[_Coming] = deque()

    def foresee(self, ids: Ids) -> None:
        """Take note of the distinct ids, ascending, that a coming iteration reads."""
        self._coming.append(_Coming(ids))

    def turn(self, rows: PartitionedRows) -> ReadyRows:
        """Read what is to be read in the next iteration, and return that iteration's rows."""
        for part in np.flatnonzero(self._read_until <= self._turn).tolist():
            next_turn = self._turn + 1 + (part - self._turn - 1) % self._parts
            for piece in range(part * self._pieces, (part + 1) * self._pieces):
                self._read(rows, piece, next_turn - self._turn)
            self._read_until[part] = min(next_turn, self._turn + len(self._coming))
        self._turn += 1
        return self._coming.popleft().ready(rows.local.row_format("features", self._name))

    def _read(self, rows: PartitionedRows, piece: int, iterations: int) -> None:
        """Read a piece, counted from the first of the first part, for some coming iterations."""
        first, size = self._offsets[:-1], np.diff(self._offsets)
        pieces = self._parts * self._pieces
        bounds = first + size * piece // pieces, first + size * (piece + 1) // pieces
        coming = list(islice(self._coming, iterations))
        wanted = [each.within(*bounds) for each in coming]
        places_of = list(zip(coming, wanted, strict=True))
        ids = distinct([each.ids[own] for each, ranges in places_of for own in ranges])
        if not ids.size:
            return
        features, is_remote = rows.read_early(self._name, ids)
        was_read = np.zeros(ids.size, np.bool_)
        for each, ranges in places_of:
            for own in ranges:
                places = np.searchsorted(ids, each.ids[own])
                each.write(own.start, features[places])
                each.saved += int(np.count_nonzero(was_read[places] & is_remote[places]))
                was_read[places] = True


class _Coming:
    """The rows of a table that a coming iteration reads, in a temporary file.

    Attributes
    ----------
    ids: [n] int64, ascending.
    saved: how many rows of other servers were read for an earlier iteration.
    """

    def __init__(self, ids: Ids) -> None:
        self.ids, self.saved = ids, 0
        self._file: IO[bytes] | None = None

    def within(self, first: Ids, stop: Ids) -> list[slice]:
        """Return where ids in some ranges are."""
        bounds = np.searchsorted(self.ids, (first, stop)).T.tolist()
        return [slice(begin, end) for begin, end in bounds if end > begin]

    def write(self, first: int, features: NDArray[Any]) -> None:
        """Write some rows, from the ``first`` on; a RequestError tells that there is no room."""
        offset, left = first * features[0].nbytes, features.view(np.uint8).data.cast("B")
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed below
                finalize(self, self._file.close)
            while left:
                written = os.pwrite(self._file.fileno(), left, offset)
                offset, left = offset + written, left[written:]
        except OSError as error:
            raise RequestError(
                f"{tempfile.gettempdir()}: rows of coming iterations cannot be written: "
                f"{error.strerror}; expected TMPDIR to name a folder with as much room as a "
                "server's features take at most, or pipeline.depth = 0"
            ) from error

    def ready(self, row_format: tuple[int, np.dtype[Any]]) -> ReadyRows:
        """Map the rows, which are all there."""
        (dim, dtype), count = row_format, self.ids.size
        if self._file is None:
            return ReadyRows(self.ids, np.empty((0, dim), dtype), 0)
        rows = np.memmap(self._file, dtype, "r", shape=(count, dim))
        return ReadyRows(self.ids, rows, self.saved)
