"""How many threads a numba kernel is worth, and whether there are any."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numba

FEW_ITEMS: Final = 4096
"""nodes or rows that one thread handles sooner than others are woken. Drawing neighbours, two
threads take 0.2 ms for ten destinations that one takes 7 us for, where waiting threads sleep
(OMP_WAIT_POLICY=PASSIVE), and break even at 8,000 (two cores); where they spin, at 300, and little
is lost up to here."""


FEW_NUMBERS: Final = 1 << 15
"""numbers of rows that are computed with, likewise"""


@contextmanager
def threads_for(work: int, few: int = FEW_ITEMS) -> Iterator[int]:
    """Within it the calling thread's kernels use as many threads as the work pays for, and how many
    these are. With hundreds of relations most kernels have little.

    Parameters
    ----------
    work: nodes or rows; or numbers, where ``few`` counts these.
    few: what one thread handles sooner than others are woken.
    """
    threads = numba.get_num_threads()
    if work >= few or threads == 1:
        yield threads
        return
    numba.set_num_threads(1)
    try:
        yield 1
    finally:
        numba.set_num_threads(threads)


def has_thread_pool() -> bool:
    """Whether numba finds a pool of threads that several threads of a process may use at the same
    time, OpenMP's or TBB's; the one that it has itself would end the process."""
    return any(_is_there(module) for module in ("omppool", "tbbpool"))


def _is_there(module: str) -> bool:
    try:
        importlib.import_module(f"numba.np.ufunc.{module}")
    except ImportError:
        return False
    return True
