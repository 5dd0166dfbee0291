"""What an import of tables may use: memory, and a folder beside its destination."""

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
from hopper.phases import Phases, Progress, Silent
from hopper.scratch import remove_abandoned, scratch_folder

_BLOCKS: Final = 320 << 20
"""bytes for blocks of tables and arrays that pass through"""
_WAITING: Final = 128 << 20
"""bytes of the process that waits for the one that imports"""
_OVER: Final = 0.8
"""share of what is left that the engine is given: it may need a little more for a while"""
_LEAST: Final = 128 << 20
"""bytes that the engine needs to do anything"""


@dataclass(frozen=True)
class Watcher:
    """Whoever waits for an import of tables.

    Attributes
    ----------
    progress: shows how far it is.
    tell: is given a line of text, before the work starts.
    """

    progress: Progress = field(default_factory=Silent)
    tell: Callable[[str], None] = lambda text: None


@dataclass
class Workspace:
    """What is given to an import of tables.

    Attributes
    ----------
    folder: on the disk of the destination, gone at the end.
    engine: see :class:`TableEngine`.
    limit: bytes of memory, of all processes of the import.
    arrays: bytes of it that arrays may take which an option needs whole.
    """

    folder: Path
    engine: TableEngine
    limit: int
    arrays: int
    phases: Phases = field(default_factory=Phases)

    def require(self, needed: int, what: str) -> None:
        """Refuse what needs more memory than there is.

        Raises
        ------
        RequestError: naming what it is, and both numbers.
        """
        if needed > self.arrays:
            raise RequestError(
                f"{what}: needs about {needed / 2**30:.2f} GiB of memory, of which --memory-limit "
                f"leaves {self.arrays / 2**30:.2f} GiB"
            )

    @contextmanager
    def reserve(self, needed: int, what: str) -> Iterator[None]:
        """Take memory from the engine for a while.

        Raises
        ------
        RequestError: it would have too little left; names what it is for, and both numbers.
        """
        self.require(needed + int(_LEAST / _OVER), what)
        self.engine.bound_memory(int((self.arrays - needed) * _OVER))
        try:
            yield
        finally:
            self.engine.bound_memory(int(self.arrays * _OVER))


def default_limit() -> int:
    """Half of the memory that can be had."""
    return available_memory() // 2


@contextmanager
def open_workspace(
    out: Path, limit: int | None = None, phases: Phases | None = None
) -> Iterator[Workspace]:
    """A workspace beside ``out``, removed when the context is left.

    Parameters
    ----------
    limit: bytes of memory; None = half of what can be had.

    Raises
    ------
    RequestError: the limit is too small, or DuckDB is missing.
    """
    spoken_for = _used() + _BLOCKS
    least = int(_LEAST / _OVER) + spoken_for
    bound = max(default_limit(), least) if limit is None else limit
    free = bound - spoken_for
    memory = int(free * _OVER)
    if bound < least:
        raise RequestError(
            f"--memory-limit: expected at least {least / 2**20:.0f}M, given {bound / 2**20:.0f}M"
        )
    parent = out.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(_prefix(out), parent) as folder:
        engine = TableEngine(folder, memory)
        try:
            yield Workspace(folder, engine, bound, free, phases or Phases())
        finally:
            engine.close()


def remove_spilled(out: Path) -> None:
    """Remove the workspaces of processes that ended early."""
    parent = out.absolute().parent
    if parent.is_dir():
        remove_abandoned(_prefix(out), parent)


def _used() -> int:
    """Bytes that processes of the import have before it begins."""
    return int(psutil.Process().memory_info().rss) + _WAITING


def _prefix(out: Path) -> str:
    return f".{out.name}.spilled-"
