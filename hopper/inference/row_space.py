"""Where the rows of a layer lie until the next layer has read them.

In memory; or in mapped files, which may be larger than memory, and from which a process that was
ended goes on: no row is computed again of which its file says that it is there.
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
    """whether rows outlast the process"""

    @abstractmethod
    def fill(
        self, name: str, pieces: Sequence[slice], make: Callable[[slice], Tensor], room: int = 0
    ) -> Tensor:
        """[n + room, ...]: the rows that ``make`` returns, [piece, ...] each, in order.

        Parameters
        ----------
        pieces: of the n rows, in order; one at least, which may be empty.
        room: rows behind them, whose content is to be written by the caller.

        Raises
        ------
        StorageError: the disk has too little space, or cannot be written to.
        """

    def await_others(self) -> None:
        """Return once every rank has filled what it fills now; all of them have to call it. Where
        rows do not outlast the process, filling them takes no longer than waits may."""
        return

    @abstractmethod
    def is_full(self, name: str) -> bool:
        """Whether all pieces of a table are there, of this process or of one before it."""

    @abstractmethod
    def drop(self, names: Iterable[str]) -> None:
        """Let go of tables, which nobody reads any more."""


class MemoryRows(RowSpace):
    """Tables in memory, where the model is."""

    keeps = False

    def fill(
        self, name: str, pieces: Sequence[slice], make: Callable[[slice], Tensor], room: int = 0
    ) -> Tensor:
        """See :class:`RowSpace`."""
        parts = [make(piece) for piece in pieces]
        if room:
            parts.append(parts[0].new_empty(room, *parts[0].shape[1:]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def is_full(self, name: str) -> bool:
        """See :class:`RowSpace`: they are with whoever filled them."""
        return False

    def drop(self, names: Iterable[str]) -> None:
        """See :class:`RowSpace`: so are these."""


class FileRows(RowSpace):
    """Tables in files, mapped; for one process at a time.

    Parameters
    ----------
    folder: of the files; made where it is missing.
    pace: of ranks that fill tables at once; None = it is the only one.
    told: is called after each piece of a table, with its name, the number of its pieces that are
        there, and that of all.
    """

    keeps = True

    def __init__(
        self,
        folder: Path,
        pace: Pace | None = None,
        told: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self._folder = folder
        self._pace = pace
        self._told = told

    def await_others(self) -> None:
        """See :class:`RowSpace`."""
        if self._pace is not None:
            self._pace.await_others()

    def fill(
        self, name: str, pieces: Sequence[slice], make: Callable[[slice], Tensor], room: int = 0
    ) -> Tensor:
        """See :class:`RowSpace`."""
        facts = self._facts(name)
        rows, done = pieces[-1].stop + room, 0
        table: NDArray[Any] | None = None
        if facts is not None and facts["rows"] == rows and facts["pieces"] == len(pieces):
            table, done = self._map(name, facts), facts["done"]
        for number, piece in enumerate(pieces[done:], done):
            made = make(piece).cpu().numpy()
            if table is None:
                facts = {"rows": rows, "shape": made.shape[1:], "dtype": str(made.dtype)}
                facts |= {"pieces": len(pieces), "done": 0}
                table = self._create(name, facts)
            table[piece] = made
            # Not noted before it is on the disk.
            if isinstance(table, np.memmap):
                table.flush()
            assert facts is not None
            facts["done"] = number + 1
            write_text(self._file(name, _FACTS_SUFFIX), json.dumps(facts))
            if self._pace is not None:
                self._pace.go_on()
            if self._told is not None:
                self._told(name, number + 1, len(pieces))
        assert table is not None
        return torch.from_numpy(table)

    def is_full(self, name: str) -> bool:
        """See :class:`RowSpace`."""
        facts = self._facts(name)
        return facts is not None and facts["done"] == facts["pieces"]

    def drop(self, names: Iterable[str]) -> None:
        """See :class:`RowSpace`."""
        for name in names:
            # What says that rows are there goes first.
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
            with file.open("wb") as made:
                if nbytes:
                    # A hole that the disk cannot fill later would kill the process.
                    os.posix_fallocate(made.fileno(), 0, nbytes)
        except OSError as error:
            raise StorageError(
                f"{file}: rows of a layer, {nbytes} bytes: {error.strerror or error}"
            ) from error
        return self._map(name, facts)

    def _map(self, name: str, facts: dict[str, Any]) -> NDArray[Any]:
        shape = facts["rows"], *facts["shape"]
        if 0 in shape:
            return np.empty(shape, facts["dtype"])
        found = np.memmap(self._file(name, _ROWS_SUFFIX), facts["dtype"], "r+", shape=shape)
        # Neighbours are anywhere: what the kernel would read around each of them (up to megabytes)
        # would push out others.
        mapped: Any = found.base
        mapped.madvise(mmap.MADV_RANDOM)
        return found

    def _file(self, name: str, suffix: str) -> Path:
        return self._folder / f"{name}{suffix}"
