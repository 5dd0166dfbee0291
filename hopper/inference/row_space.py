"""Storage of a layer's rows until the next layer has read them.

Rows are kept in memory or in mapped files. Files may be larger than memory, and an interrupted
process can continue from them: rows that a file already has are not computed again.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster.cluster import Cluster
from hopper.errors import StorageError
from hopper.files.whole_files import write_text
from hopper.graph.json_file import read_json

_ROWS_SUFFIX: Final = ".rows"
_FACTS_SUFFIX: Final = ".json"


class KeepAlive:
    """Keeps waits within their deadlines while ranks do long work of their own.

    A rank's work between two exchanges may take longer than the deadline of a wait. So a working
    rank sends a message after each piece, and a rank that has finished answers these messages.

    Parameters
    ----------
    operation: name of the work, for errors.
    """

    def __init__(self, cluster: Cluster, operation: str) -> None:
        self._cluster = cluster
        self._operation = operation

    def go_on(self) -> None:
        """Say that a piece is done. More pieces may follow, and then :meth:`await_others`."""
        self._meet(working=True)

    def await_others(self) -> None:
        """Wait until every rank has called this."""
        while self._meet(working=False):
            pass

    def _meet(self, *, working: bool) -> bool:
        """Exchange a message, and return whether any rank is still working."""
        if self._cluster.world == 1:
            return False
        count = torch.tensor([int(working)])
        self._cluster.all_reduce(count, "control", self._operation)
        return bool(count)


class RowSpace:
    """Tables of rows by name, each filled piece by piece and used by one process at a time.

    Parameters
    ----------
    folder: the folder of memory-mapped files, created if missing; None = in the memory of the
        model's device, where the caller alone keeps the rows.
    keep_alive: keeps ranks in touch that fill tables at the same time; None = filling takes less
        than the deadline of a wait.
    on_piece: called after each piece as (name of the table, pieces that are stored, all pieces).
    """

    def __init__(
        self,
        folder: Path | None = None,
        keep_alive: KeepAlive | None = None,
        on_piece: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._folder = folder
        self._keep_alive = keep_alive
        self._on_piece = on_piece

    @property
    def is_permanent(self) -> bool:
        """Return whether rows are still there after the process has ended."""
        return self._folder is not None

    def await_others(self) -> None:
        """Wait until every rank has filled its tables. Every rank must call this."""
        if self._keep_alive is not None:
            self._keep_alive.await_others()

    def fill(
        self, name: str, pieces: Sequence[slice], make: Callable[[slice], Tensor], room: int = 0
    ) -> Tensor:
        """Fill a table with the rows that ``make`` returns for each piece that it lacks, in order.

        Parameters
        ----------
        pieces: consecutive slices of the n rows; at least one, which may be empty.
        make: returns the rows of a piece, [piece, ...].
        room: further rows at the end, for the caller to write.

        Returns
        -------
        [n + room, ...].

        Raises
        ------
        StorageError: the disk has too little space, or cannot be written to.
        """
        if self._folder is None:
            parts = [make(piece) for piece in pieces]
            if room:
                parts.append(parts[0].new_empty(room, *parts[0].shape[1:]))
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        facts = self._facts(name)
        rows, done = pieces[-1].stop + room, 0
        table: NDArray[Any] | None = None
        if facts is not None and facts["rows"] == rows and facts["pieces"] == len(pieces):
            table, done = self._map(name, facts), facts["done"]
        for number, piece in enumerate(pieces[done:], done):
            piece_rows = make(piece).cpu().numpy()
            if table is None:
                facts = {"rows": rows, "shape": piece_rows.shape[1:]}
                facts |= {"dtype": str(piece_rows.dtype), "pieces": len(pieces), "done": 0}
                table = self._create(name, facts)
            table[piece] = piece_rows
            # The piece must be on the disk before it is recorded as done.
            if isinstance(table, np.memmap):
                table.flush()
            assert facts is not None
            facts["done"] = number + 1
            write_text(self._file(name, _FACTS_SUFFIX), json.dumps(facts))
            if self._keep_alive is not None:
                self._keep_alive.go_on()
            if self._on_piece is not None:
                self._on_piece(name, number + 1, len(pieces))
        assert table is not None
        return torch.from_numpy(table)

    def is_full(self, name: str) -> bool:
        """Return whether all pieces of a table are stored, by this process or an earlier one."""
        facts = self._facts(name)
        return facts is not None and facts["done"] == facts["pieces"]

    def drop(self, names: Iterable[str]) -> None:
        """Delete tables that nobody will read."""
        for name in names if self.is_permanent else ():
            # The record of stored rows must not outlive the rows.
            self._file(name, _FACTS_SUFFIX).unlink(missing_ok=True)
            self._file(name, _ROWS_SUFFIX).unlink(missing_ok=True)

    def _facts(self, name: str) -> dict[str, Any] | None:
        if not self.is_permanent:
            return None
        file = self._file(name, _FACTS_SUFFIX)
        return read_json(file) if file.exists() else None

    def _create(self, name: str, facts: dict[str, Any]) -> NDArray[Any]:
        file = self._file(name, _ROWS_SUFFIX)
        size = facts["rows"] * int(np.prod(facts["shape"], dtype=np.int64))
        nbytes = size * np.dtype(facts["dtype"]).itemsize
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as stream:
                if nbytes:
                    # Space is reserved now: a full disk would later kill the process by SIGBUS.
                    os.posix_fallocate(stream.fileno(), 0, nbytes)
        except OSError as error:
            raise StorageError(
                f"{file}: rows of a layer, {nbytes} bytes: {error.strerror or error}"
            ) from error
        return self._map(name, facts)

    def _map(self, name: str, facts: dict[str, Any]) -> NDArray[Any]:
        shape = facts["rows"], *facts["shape"]
        if 0 in shape:
            return np.empty(shape, facts["dtype"])
        table = np.memmap(self._file(name, _ROWS_SUFFIX), facts["dtype"], "r+", shape=shape)
        # Rows are read at random. The kernel's read-ahead of up to megabytes would evict others.
        mapped: Any = table.base
        mapped.madvise(mmap.MADV_RANDOM)
        return table

    def _file(self, name: str, suffix: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{name}{suffix}"
