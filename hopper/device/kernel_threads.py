"""How many CPU threads of a rank a numba kernel should use."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numba

FEW_ITEMS: Final = 4096
"""Below this number of nodes or rows, one thread is faster than waking others.

Drawing the neighbours of ten destinations takes one thread 7 us, and two threads 0.2 ms if waiting
threads sleep (OMP_WAIT_POLICY=PASSIVE). On two cores they break even at 8,000 destinations. If
waiting threads spin they break even at 300, and one thread loses little up to this number."""


FEW_NUMBERS: Final = 1 << 15
"""The same bound for kernels whose work is counted in numbers."""


@contextmanager
def threads_for(work: int, few: int = FEW_ITEMS) -> Iterator[int]:
    """Let the calling thread's kernels use one thread if there is little work.

    With hundreds of relations, most kernels have little.

    Parameters
    ----------
    work: the amount of work: nodes, rows or numbers.
    few: below this amount, one thread is faster than waking others.

    Yields
    ------
    The number of threads that kernels use.
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
    """Return whether numba has a thread pool that several threads may use at the same time.

    Those of OpenMP and TBB are safe. numba's own pool ends the process in that case.
    """
    return any(_can_import(module) for module in ("omppool", "tbbpool"))


def _can_import(module: str) -> bool:
    try:
        importlib.import_module(f"numba.np.ufunc.{module}")
    except ImportError:
        return False
    return True
