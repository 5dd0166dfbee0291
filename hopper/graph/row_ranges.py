"""Rows of a CSC in pieces with few edges each, so that memory does not grow with the graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

EDGES_AT_ONCE: Final = 1 << 19


def row_ranges(indptr: NDArray[np.int64], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Divide rows into ranges with few edges each, or of one row."""
    while start < stop:
        full = int(np.searchsorted(indptr, indptr[start] + EDGES_AT_ONCE, side="right")) - 1
        last = min(stop, max(full, start + 1))
        yield start, last
        start = last
