"""Storage of a layer's rows until the next layer has read them.

Rows are kept in memory or in mapped files. Files may be larger than memory, and an interrupted
process can continue from them: rows that a file already has are not computed again.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.store.npy import map_of
from hopper.cluster.cluster import Cluster
from hopper.errors import StorageError
from hopper.files.whole_files import write_text
from hopper.graph.array_file import create_array
from hopper.graph.json_file import read_json

_ROWS: Final = ".npy"
_FACTS: Final = ".json"


class RowSpace:
    """Tables of rows by name, each filled piece by piece and used by one process at a time.

    They are mapped files in a folder, which is created if it is missing, or without a folder in
    host memory, where the caller alone keeps the rows. Files that are not ``permanent`` have no
    name, and go with the rows. ``on_piece`` is called after each piece that was stored in a
    permanent file as (name of the table, pieces that are stored, all pieces).

    With a cluster its ranks fill tables at the same time. A rank's work between two exchanges may
    take longer than the deadline of a wait. So a working rank sends a message after each piece, and
    a rank that has finished answers these messages. Errors name the work, ``operation``.
    """

    def __init__(
        self,
        folder: Path | None = None,
        on_piece: Callable[[str, int, int], None] | None = None,
        cluster: Cluster | None = None,
        operation: str = "",
        *,
        permanent: bool = True,
    ) -> None:
        self._folder, self._on_piece = folder, on_piece
        self.is_permanent = permanent and folder is not None
        """whether rows are still there after the process has ended"""
        self._cluster, self._operation = cluster, operation

    def go_on(self) -> None:
        """Say that a piece is done. More pieces may follow, and then :meth:`await_others`."""
        self._meet(working=True)

    def await_others(self) -> None:
        """Wait until every rank has called this."""
        while self._meet(working=False):
            pass

    def _meet(self, *, working: bool) -> bool:
        """Exchange a message, and return whether any rank is still working."""
        if self._cluster is None or self._cluster.world == 1:
            return False
        count = torch.tensor([int(working)])
        self._cluster.all_reduce(count, "control", self._operation)
        return bool(count)

    def fill(
        self, name: str, pieces: Sequence[slice], make: Callable[[slice], Tensor], room: int = 0
    ) -> Tensor:
        """Fill a table with the rows that ``make`` returns for each piece that it lacks, in order;
        return all n + ``room`` rows, the last of which the caller will write.

        ``pieces`` are consecutive slices of the n rows, at least one, which may be empty. A
        :class:`StorageError` says that the disk has too little space, or cannot be written to.
        """
        facts = {"rows": pieces[-1].stop + room, "pieces": len(pieces), "done": 0}
        table: NDArray[Any] | None = None
        stored = self._facts(name)
        if stored is not None and stored == facts | {"done": stored["done"]}:
            facts, table = stored, np.load(self._file(name, _ROWS), "r+", allow_pickle=False)
        for number, piece in enumerate(pieces[facts["done"] :], facts["done"]):
            rows = make(piece).cpu().numpy()
            if table is None:
                table = self._create(name, rows.dtype, (facts["rows"], *rows.shape[1:]))
            table[piece] = rows
            if not self.is_permanent:
                continue
            # The piece must be on the disk before it is recorded as done.
            if isinstance(table, np.memmap):
                table.flush()
            facts["done"] = number + 1
            write_text(self._file(name, _FACTS), json.dumps(facts))
            self.go_on()
            if self._on_piece is not None:
                self._on_piece(name, number + 1, len(pieces))
        assert table is not None
        mapped = map_of(table)
        if mapped is not None:
            # Rows are read at random. The kernel's read-ahead of megabytes would evict others.
            mapped.madvise(mmap.MADV_RANDOM)
        return torch.from_numpy(table)

    def is_full(self, name: str) -> bool:
        """Return whether all pieces of a table are stored, by this process or an earlier one."""
        facts = self._facts(name)
        return facts is not None and facts["done"] == facts["pieces"]

    def drop(self, prefix: str) -> None:
        """Delete tables whose names begin with a prefix, and which nobody will read."""
        # The record of stored rows must not outlive the rows.
        for suffix in (_FACTS, _ROWS):
            for file in self._folder.glob(f"{prefix}*{suffix}") if self._folder else ():
                file.unlink()

    def _facts(self, name: str) -> dict[str, Any] | None:
        file = self._file(name, _FACTS) if self.is_permanent else None
        return read_json(file) if file is not None and file.exists() else None

    def _create(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        if self._folder is None:
            return np.empty(shape, dtype)
        file = self._file(name, _ROWS)
        try:
            array = create_array(file, dtype, shape)
            if not self.is_permanent:
                file.unlink()
            return array
        except OSError as error:
            nbytes = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            raise StorageError(
                f"{file}: rows of a layer, {nbytes} bytes: {error.strerror or error}"
            ) from error

    def _file(self, name: str, suffix: str) -> Path:
        assert self._folder is not None
        owner = "" if self.is_permanent else f"rows-{os.getpid()}-"
        return self._folder / f"{owner}{name}{suffix}"


def split_rows(count: int, most: int) -> list[slice]:
    """Split ``count`` rows into pieces of at most ``most``; at least one piece."""
    return [slice(start, min(start + most, count)) for start in range(0, max(1, count), most)]
