"""Make arrays with a number for each node, in memory while they fit, else in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hopper.graph.array_file import create_array
from hopper.graph.memory_budget import memory_budget


class NodeArrays:
    """Makes arrays with a number for each node, of which memory holds a limited amount.

    The others are maps of files, whose pages the kernel drops when memory is short. A file is
    removed as soon as it is mapped, so it is gone with its array.

    Parameters
    ----------
    folder: a folder for the files, on a disk with room for them.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / ".node-array.npy"
        self._left = memory_budget().resident

    def full(self, count: int, dtype: DTypeLike, value: int = 0) -> NDArray[Any]:
        """Make an array [count] of one value.

        Raises
        ------
        OSError: the disk has too little space.
        """
        size = count * np.dtype(dtype).itemsize
        if size <= self._left:
            self._left -= size
            return np.full(count, value, dtype)
        array = create_array(self._file, dtype, (count,))
        self._file.unlink()
        if value:
            array[:] = value
        return np.asarray(array)
