"""Store whole files in a partitioned directory, as links to the graph's if possible, else copies.

A hard link is a second name of the same bytes, so storing a table takes no time, space or memory.
But a change of a linked file in place changes it under all of its names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Hashable
from pathlib import Path
from typing import Literal

from hopper.timing.phases import Progress

Tables = Literal["link", "copy"]
"""How a partitioned directory stores whole files of the graph."""


class StoredFiles:
    """Stores whole files in a partitioned directory, each written at most once: first links, which
    cost nothing, then by :meth:`write_copies` what could not be linked."""

    def __init__(self, tables: Tables) -> None:
        self.bytes_to_write = 0
        """bytes of all files that are not links"""
        self.linked_bytes = 0
        """bytes of all files that are links to the graph's files"""
        self._tables = tables
        self._first: dict[Hashable, Path] = {}
        self._copies: list[tuple[Path, Path]] = []

    def store(self, source: Path, target: Path) -> None:
        """Store a file of the graph as a link, or else a copy that :meth:`write_copies` makes."""
        size = source.stat().st_size
        if self._tables == "link" and _link(source, target):
            self.linked_bytes += size
        elif self.reserve(source, target, size):
            self._copies.append((source, target))

    def reserve(self, content: Hashable, target: Path, size: int) -> bool:
        """Create an empty file, or link it to one with the same ``content``, a key; return whether
        the caller must fill the file, in place, with ``size`` bytes."""
        first = self._first.setdefault(content, target)
        if first != target and _link(first, target):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(exist_ok=False)
        self.bytes_to_write += size
        return True

    def write_copies(self, progress: Progress) -> None:
        """Write all copies to the disk; progress advances by bytes."""
        for source, target in self._copies:
            shutil.copyfile(source, target)
            progress.advance(source.stat().st_size)
        self._copies.clear()


def _link(source: Path, target: Path) -> bool:
    """Make a hard link; return False if that is impossible, as on another file system, one without
    links, or of a file of another user."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A link to a symbolic link would be broken in a copy of a server's folder.
        os.link(source.resolve(), target)
    except FileExistsError:
        raise
    except OSError:
        return False
    return True
