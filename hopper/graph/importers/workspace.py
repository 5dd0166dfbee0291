"""The memory and the folder that an import of tables may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from cache_server.available_memory import available_memory
from hopper.errors import RequestError
from hopper.graph.importers.table_engine import TableEngine
from hopper.graph.publish import folder_beside
from hopper.phases import Phases, Progress, Silent

_BLOCKS: Final = 320 << 20
"""bytes for batches of tables and pieces of arrays that pass through"""
_WAITING: Final = 128 << 20
"""bytes of the process that waits for the importing process"""
_OVER: Final = 0.8
"""share of the remaining memory that the engine gets, because it exceeds its limit at times"""
_LEAST: Final = 128 << 20
"""fewest bytes that the engine works with"""


@dataclass(frozen=True)
class Watcher:
    """Is told of an import of tables while it runs.

    Attributes
    ----------
    progress: shows the progress.
    tell: is called with the estimate of memory, disk and time, a line of text.
    """

    progress: Progress = field(default_factory=Silent)
    tell: Callable[[str], None] = lambda text: None


@dataclass
class Workspace:
    """The memory and the folder that an import of tables may use.

    Attributes
    ----------
    folder: a folder on the destination's disk, which is removed at the end.
    engine: joins and sorts tables.
    limit: bytes of memory of all processes of the import.
    arrays: bytes of it for arrays that an option needs whole.
    """

    folder: Path
    engine: TableEngine
    limit: int
    arrays: int
    phases: Phases = field(default_factory=Phases)

    def require(self, nbytes: int, what: str) -> None:
        """Check that memory suffices for whole arrays.

        Raises
        ------
        RequestError: it does not. The text has ``what``, and both numbers.
        """
        if nbytes > self.arrays:
            raise RequestError(
                f"{what}: needs about {nbytes / 2**30:.2f} GiB of memory, of which --memory-limit "
                f"leaves {self.arrays / 2**30:.2f} GiB"
            )

    @contextmanager
    def reserve(self, nbytes: int, what: str) -> Iterator[None]:
        """Take memory from the engine within a ``with`` block.

        Raises
        ------
        RequestError: the engine would have too little left. The text has ``what``, and both
            numbers.
        """
        self.require(nbytes + int(_LEAST / _OVER), what)
        self.engine.bound_memory(int((self.arrays - nbytes) * _OVER))
        try:
            yield
        finally:
            self.engine.bound_memory(int(self.arrays * _OVER))


def default_limit() -> int:
    """Return half of the available memory, in bytes."""
    return available_memory() // 2


@contextmanager
def open_workspace(
    out: Path, limit: int | None = None, phases: Phases | None = None
) -> Iterator[Workspace]:
    """Open a workspace beside ``out``, and remove it at the end.

    Parameters
    ----------
    limit: bytes of memory; None = half of the available memory.

    Raises
    ------
    RequestError: the limit is too small.
    """
    reserved = _used_memory() + _BLOCKS
    least = int(_LEAST / _OVER) + reserved
    bound = max(default_limit(), least) if limit is None else limit
    free = bound - reserved
    memory = int(free * _OVER)
    if bound < least:
        raise RequestError(
            f"--memory-limit: expected at least {least / 2**20:.0f}M, given {bound / 2**20:.0f}M"
        )
    with folder_beside(out) as folder:
        engine = TableEngine(folder, memory)
        try:
            yield Workspace(folder, engine, bound, free, phases or Phases())
        finally:
            engine.close()


def _used_memory() -> int:
    """Return the bytes of memory that the import's processes have before it begins."""
    return int(psutil.Process().memory_info().rss) + _WAITING
