"""Watching something in a thread while the main thread works."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watching(name: str, watch: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run ``watch`` in a thread while the context lasts.

    Parameters
    ----------
    name: name of the thread.
    watch: called with an event that is set when the context is left. It must return soon after.
    """
    done = threading.Event()
    thread = threading.Thread(target=watch, args=(done,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
