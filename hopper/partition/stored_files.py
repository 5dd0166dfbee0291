"""Whole files of a partitioned directory: links to the graph's where they can be, else copies.

A hard link is a second name of the same bytes, so storing a table takes no time, no space and no
memory. It outlives the first name, and tar and rsync read it like any other file. But whoever
changes a linked file in place changes it under all of its names.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Final, Literal

from hopper.graph.array_file import named
from hopper.phases import Progress

Tables = Literal["link", "copy"]
"""how a partitioned directory stores whole files of the graph"""

_BYTES_AT_ONCE: Final = 16 << 20
_NO_COPY_IN_KERNEL: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
)
"""how a file system says that the kernel does not copy between these files"""


class StoredFiles:
    """Files that go whole into a partitioned directory, each written at most once.

    Names are given first, and cost nothing where links do. Then ``bytes_to_write`` tells what is
    left, and :meth:`write_copies` writes it.

    Attributes
    ----------
    bytes_to_write: of all files that are no links.
    linked_bytes: of all files that are links to the graph's.
    """

    def __init__(self, tables: Tables) -> None:
        self.bytes_to_write = 0
        self.linked_bytes = 0
        self._tables = tables
        self._first: dict[Hashable, Path] = {}
        self._copies: list[tuple[Path, Path]] = []

    def store(self, source: Path, target: Path) -> None:
        """Store a file of the graph: a link, or else a copy that :meth:`write_copies` makes.

        Raises
        ------
        OSError: the source cannot be read, or there is such a target; names a file.
        """
        size = source.stat().st_size
        if self._tables == "link" and _link(source, target):
            self.linked_bytes += size
        elif self.reserve(source, target, size):
            self._copies.append((source, target))

    def reserve(self, content: Hashable, target: Path, size: int) -> bool:
        """Give a file its name before it is written, the same file for every target of the same
        content; returns whether the caller has to fill it, in place.

        Parameters
        ----------
        content: what names the content.
        size: bytes of the file.

        Raises
        ------
        OSError: there is such a target; names it.
        """
        first = self._first.setdefault(content, target)
        if first != target and _link(first, target):
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(exist_ok=False)
        self.bytes_to_write += size
        return True

    def write_copies(self, progress: Progress) -> None:
        """Write all copies to the disk; progress advances by bytes.

        Raises
        ------
        OSError: a file cannot be read or written; names it.
        """
        for source, target in self._copies:
            _copy(source, target, progress)
        self._copies.clear()


def _link(source: Path, target: Path) -> bool:
    """Give a file a second name; False where that cannot be: another file system, one without
    links, a file with too many, or one of another user."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # What a symbolic link points to, or a server's folder would not be whole when it is sent.
        os.link(source.resolve(), target)
    except FileExistsError:
        raise
    except OSError:
        return False
    return True


def _copy(source: Path, target: Path, progress: Progress) -> None:
    """Copy the bytes of a file into an empty one, in the kernel where it does that."""
    with named(target), source.open("rb", buffering=0) as read, target.open("r+b") as written:
        if sys.platform == "linux":
            try:
                ends = read.fileno(), written.fileno()
                while done := os.copy_file_range(*ends, _BYTES_AT_ONCE):
                    progress.advance(done)
            except OSError as error:
                if error.errno not in _NO_COPY_IN_KERNEL:
                    raise
        # All of it, or what is left: both files stand where the kernel stopped.
        while piece := read.read(_BYTES_AT_ONCE):
            written.write(piece)
            progress.advance(len(piece))
        written.flush()
        os.fsync(written.fileno())
