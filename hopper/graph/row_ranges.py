"""Divide the rows of a CSC into ranges with few edges, to work on one range at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph.piece_size import piece_size

EDGES_AT_ONCE: Final = 1 << 19
_BYTES_AN_EDGE: Final = 32


def edges_at_once() -> int:
    """Return the most edges of a range that has more than one row."""
    return max(1, min(EDGES_AT_ONCE, piece_size().piece // _BYTES_AN_EDGE))


def row_ranges(indptr: NDArray[np.int64], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Divide rows [``start``, ``stop``) into ranges with few edges.

    A range has at most :func:`edges_at_once` edges, or a single row.
    """
    most = edges_at_once()
    while start < stop:
        full = int(np.searchsorted(indptr, indptr[start] + most, side="right")) - 1
        last = min(stop, max(full, start + 1))
        yield start, last
        start = last
