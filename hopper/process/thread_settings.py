"""CPU threads of ranks, and the variables that tell OpenMP, which reads them when it is loaded."""

from __future__ import annotations

import os


def count_cores() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0))


def threads_of_a_rank(threads: int, ranks: int) -> int:
    """Return the number of CPU threads of a rank; ``threads`` 0 = the machine's cores divided by
    ranks."""
    return threads or max(1, count_cores() // ranks)


def thread_settings(ranks: int, threads: int) -> dict[str, str]:
    """Return OpenMP's environment variables for a machine's ranks. Values in the environment win.

    Parameters
    ----------
    threads: CPU threads of each rank; 0 = the machine's cores divided by its ranks.
    """
    threads = threads_of_a_rank(threads, ranks)
    settings = {"OMP_NUM_THREADS": str(threads)}
    # Waiting threads spin for a moment by default, which speeds up many short operations. It is
    # harmful on a core that another rank's thread could use.
    if ranks * threads > count_cores():
        settings["OMP_WAIT_POLICY"] = "PASSIVE"
    return {name: os.environ.get(name, value) for name, value in settings.items()}
