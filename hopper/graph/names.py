"""What a source called nodes and classes: text files with a line for each."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError

_END: int = ord("\n")


class Names:
    """The lines of a file by number, read when they are asked for."""

    def __init__(self, file: Path) -> None:
        self._text = (
            np.memmap(file, np.uint8, mode="r") if file.stat().st_size else np.empty(0, "B")
        )
        ends = np.flatnonzero(self._text == _END)
        self._bounds = np.concatenate(([0], ends + 1))

    @classmethod
    def open(cls, file: Path, count: int) -> Self | None:
        """Those of a file; None where it is not there.

        Parameters
        ----------
        count: how many there must be.

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
        """The names of some, by number."""
        bounds = zip(self._bounds[ids].tolist(), self._bounds[ids + 1].tolist(), strict=True)
        return [bytes(self._text[first : last - 1]).decode() for first, last in bounds]
