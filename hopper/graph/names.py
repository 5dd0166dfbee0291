"""A source's names of nodes and classes: text files with one name a line."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.array_file import iter_pieces

_END: int = ord("\n")


class Names:
    """The lines of a text file by number, each read when it is asked for."""

    def __init__(self, file: Path) -> None:
        self._text = (
            np.memmap(file, np.uint8, mode="r") if file.stat().st_size else np.empty(0, "B")
        )
        ends = [
            first + 1 + np.flatnonzero(piece == _END) for first, piece in iter_pieces(self._text)
        ]
        self._bounds = np.concatenate([np.zeros(1, np.int64), *ends])

    @classmethod
    def open(cls, file: Path, count: int) -> Self | None:
        """Open a file of names; return None if there is no such file.

        Parameters
        ----------
        count: number of lines that the file must have.

        Raises
        ------
        GraphError: it has another number of lines.
        """
        if not file.is_file():
            return None
        names = cls(file)
        if len(names) != count:
            raise GraphError(f"{file}: expected {count} lines, given {len(names)}")
        return names

    def __len__(self) -> int:
        return self._bounds.size - 1

    def of(self, ids: NDArray[np.int64]) -> list[str]:
        """Return the names of the nodes or classes with these numbers."""
        bounds = zip(self._bounds[ids].tolist(), self._bounds[ids + 1].tolist(), strict=True)
        return [bytes(self._text[first : last - 1]).decode() for first, last in bounds]
