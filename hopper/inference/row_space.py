"""Storage of a layer's rows until the next layer has read them.

Rows are kept in memory or in mapped files. Files may be larger than memory, and an interrupted
process can continue from them: rows that a file already has are not computed again.
"""

from __future__ import annotations

import json
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.errors import StorageError
from hopper.graph.json_file import read_json
from hopper.inference.pace import Pace
from hopper.whole_files import write_text

_ROWS_SUFFIX: Final = ".rows"
_FACTS_SUFFIX: Final = ".json"


class RowSpace(ABC):
    """Tables of rows by name, each filled piece by piece."""

    keeps: ClassVar[bool]
    """whether rows are still there after the process has ended"""

    @abstractmethod
    def fill(
        self, name: str, pieces: Sequence[slice], make: Callable[[slice], Tensor], room: int = 0
    ) -> Tensor:
        """Fill a table with the rows that ``make`` returns for each piece, in order.

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

    def await_others(self) -> None:
        """Wait until every rank has filled its tables. Every rank must call this.

        Does nothing here: filling tables in memory takes less than the deadline of a wait.
        """
        return

    @abstractmethod
    def is_full(self, name: str) -> bool:
        """Return whether all pieces of a table are stored, by this process or an earlier one."""

    @abstractmethod
    def drop(self, names: Iterable[str]) -> None:
        """Delete tables that nobody will read."""


class MemoryRows(RowSpace):
    """Tables in the memory of the model's device. The caller keeps the rows that it gets."""

    keeps = False

    def fill(
        self, name: str, pieces: Sequence[slice], make: Callable[[slice], Tensor], room: int = 0
    ) -> Tensor:
        """Join the rows of all pieces; see :meth:`RowSpace.fill`."""
        parts = [make(piece) for piece in pieces]
        if room:
            parts.append(parts[0].new_empty(room, *parts[0].shape[1:]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def is_full(self, name: str) -> bool:
        """Return False: no rows are stored here."""
        return False

    def drop(self, names: Iterable[str]) -> None:
        """Do nothing: no rows are stored here."""


class FileRows(RowSpace):
    """Tables in memory-mapped files, used by one process at a time.

    Parameters
    ----------
    folder: folder of the files; created if missing.
    pace: keeps ranks in touch that fill tables at the same time; None = there is only one rank.
    on_piece: called after each piece as (name of the table, pieces that are stored, all pieces).
    """

    keeps = True

    def __init__(
        self,
        folder: Path,
        pace: Pace | None = None,
        on_piece: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._folder = folder
        self._pace = pace
        self._on_piece = on_piece

    def await_others(self) -> None:
        """Wait until every rank has filled its tables."""
        if self._pace is not None:
            self._pace.await_others()

    def fill(
        self, name: str, pieces: Sequence[slice], make: Callable[[slice], Tensor], room: int = 0
    ) -> Tensor:
        """Compute the pieces that the file lacks; see :meth:`RowSpace.fill`."""
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
            if self._pace is not None:
                self._pace.go_on()
            if self._on_piece is not None:
                self._on_piece(name, number + 1, len(pieces))
        assert table is not None
        return torch.from_numpy(table)

    def is_full(self, name: str) -> bool:
        """Return whether the file has all pieces."""
        facts = self._facts(name)
        return facts is not None and facts["done"] == facts["pieces"]

    def drop(self, names: Iterable[str]) -> None:
        """Delete the files of tables."""
        for name in names:
            # The record of stored rows must not outlive the rows.
            self._file(name, _FACTS_SUFFIX).unlink(missing_ok=True)
            self._file(name, _ROWS_SUFFIX).unlink(missing_ok=True)

    def _facts(self, name: str) -> dict[str, Any] | None:
        file = self._file(name, _FACTS_SUFFIX)
        return read_json(file) if file.exists() else None

    def _create(self, name: str, facts: dict[str, Any]) -> NDArray[Any]:
        file = self._file(name, _ROWS_SUFFIX)
        size = facts["rows"] * int(np.prod(facts["shape"], dtype=np.int64))
        nbytes = size * np.dtype(facts["dtype"]).itemsize
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
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
        return self._folder / f"{name}{suffix}"
