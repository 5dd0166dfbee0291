"""A source's names of nodes and classes: text files with one name a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.array_file import iter_pieces

_LINES: Final = 256
"""Lines between two places that are remembered, so that there may be more names than memory."""
_BYTES_AT_ONCE: Final = 1 << 20


class Names:
    """The lines of a text file by number, each read when it is asked for."""

    def __init__(self, file: Path) -> None:
        text = np.memmap(file, np.uint8, mode="r") if file.stat().st_size else np.empty(0, "B")
        starts, self._count = [np.zeros(1, np.int64)], 0
        for first, piece in iter_pieces(text, _BYTES_AT_ONCE):
            ends = np.flatnonzero(piece == ord("\n"))
            starts.append(first + 1 + ends[-(self._count + 1) % _LINES :: _LINES])
            self._count += ends.size
        self._text, self._starts = text, np.append(np.concatenate(starts), text.size)

    @classmethod
    def open(cls, file: Path, count: int) -> Self | None:
        """Open a file of names, which must have ``count`` lines; return None if there is none."""
        if not file.is_file():
            return None
        names = cls(file)
        if len(names) != count:
            raise GraphError(f"{file}: expected {count} lines, given {len(names)}")
        return names

    def __len__(self) -> int:
        return self._count

    def find(self, names: Sequence[str]) -> NDArray[np.int64]:
        """Return [n] int64: the numbers of the nodes or classes with these names; -1 = there is
        none. Only the names that are looked for are in memory."""
        numbers = dict.fromkeys(names, -1)
        for first in range(0, len(self), _LINES * _LINES):
            ids = np.arange(first, min(first + _LINES * _LINES, len(self)))
            for number, name in enumerate(self.of(ids), first):
                if name in numbers:
                    numbers[name] = number
        return np.array([numbers[name] for name in names], np.int64)

    def of(self, ids: NDArray[np.int64]) -> list[str]:
        """Return the names of the nodes or classes with these numbers."""
        blocks, lines = np.divmod(np.asarray(ids), _LINES)
        names, current, texts = [""] * len(ids), -1, list[bytes]()
        for place in np.argsort(blocks, kind="stable").tolist():
            if blocks[place] != current:
                current = int(blocks[place])
                first, stop = self._starts[current : current + 2].tolist()
                texts = bytes(self._text[first:stop]).split(b"\n")
            names[place] = texts[lines[place]].decode()
        return names
