"""A thread that looks after something while something else is done."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watching(name: str, watch: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run ``watch`` in a thread beside what this context does.

    Parameters
    ----------
    name: of the thread.
    watch: is given an event that is set when the context is left, and returns soon after that.
    """
    done = threading.Event()
    thread = threading.Thread(target=watch, args=(done,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
