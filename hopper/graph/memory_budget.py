"""Bounds on how much of a graph's arrays is in memory at a time, and ranges of rows within them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_CHUNK: Final = 16 << 20
LEAST_CHUNK: Final = 256 << 10
EDGES_AT_ONCE: Final = 1 << 19
_BYTES_AN_EDGE: Final = 32


class MemoryBudget(NamedTuple):
    """Bounds on the bytes that may be in memory at a time."""

    chunk: int = MOST_CHUNK
    """of one piece of an array; a few pieces are in memory at a time"""
    resident: int = 1 << 62
    """of all arrays with a number for every node or edge together; larger arrays are worked on in
    ranges, or lie in a file"""


_UNLIMITED: Final = MemoryBudget()
_BUDGET: Final = ContextVar("memory budget", default=_UNLIMITED)


def memory_budget() -> MemoryBudget:
    """Return the budget in force: that of :func:`limit_memory`, or else none on ``resident``."""
    return _BUDGET.get()


@contextmanager
def limit_memory(budget: MemoryBudget) -> Iterator[None]:
    """Set the budget within a ``with`` block; chunks stay between 256 KiB and 16 MiB."""
    chunk = max(LEAST_CHUNK, min(MOST_CHUNK, budget.chunk))
    token = _BUDGET.set(MemoryBudget(chunk, max(LEAST_CHUNK, budget.resident)))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def edges_at_once() -> int:
    """Return the most edges of a range that has more than one row."""
    return max(1, min(EDGES_AT_ONCE, memory_budget().chunk // _BYTES_AN_EDGE))


def row_ranges(indptr: NDArray[np.int64], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Divide rows [``start``, ``stop``) into ranges of :func:`edges_at_once` edges, or one row."""
    most = edges_at_once()
    while start < stop:
        full = int(np.searchsorted(indptr, indptr[start] + most, side="right")) - 1
        last = min(stop, max(full, start + 1))
        yield start, last
        start = last
