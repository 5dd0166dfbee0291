"""Store whole files in a partitioned directory, as links to the graph's if possible, else copies.

A hard link is a second name of the same bytes, so storing a table takes no time, space or memory.
It outlives the first name, and tar and rsync read it like any other file. But a change of a linked
file in place changes it under all of its names.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Final, Literal

from hopper.graph.array_file import name_in_errors
from hopper.phases import Progress

Tables = Literal["link", "copy"]
"""How a partitioned directory stores whole files of the graph."""

_BYTES_AT_ONCE: Final = 16 << 20
_NO_COPY_IN_KERNEL: Final = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
)
"""Errors by which the kernel says that it does not copy between these files."""


class StoredFiles:
    """Stores whole files in a partitioned directory, each written at most once.

    Files are linked first, which costs nothing. Then :meth:`write_copies` writes the files that
    could not be linked, of which there are ``bytes_to_write`` bytes.

    Attributes
    ----------
    bytes_to_write: bytes of all files that are not links.
    linked_bytes: bytes of all files that are links to the graph's files.
    """

    def __init__(self, tables: Tables) -> None:
        self.bytes_to_write = 0
        self.linked_bytes = 0
        self._tables = tables
        self._first: dict[Hashable, Path] = {}
        self._copies: list[tuple[Path, Path]] = []

    def store(self, source: Path, target: Path) -> None:
        """Store a file of the graph as a link, or else as a copy that :meth:`write_copies` makes.

        Raises
        ------
        OSError: the source cannot be read, or the target exists. The error names the file.
        """
        size = source.stat().st_size
        if self._tables == "link" and _link(source, target):
            self.linked_bytes += size
        elif self.reserve(source, target, size):
            self._copies.append((source, target))

    def reserve(self, content: Hashable, target: Path, size: int) -> bool:
        """Create an empty file, or link it to one with the same content.

        Parameters
        ----------
        content: a key that is equal for files with the same content.
        size: bytes that the file will have.

        Returns
        -------
        Whether the caller must fill the file, in place.

        Raises
        ------
        OSError: the target exists. The error names it.
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
        OSError: a file cannot be read or written. The error names it.
        """
        for source, target in self._copies:
            _copy(source, target, progress)
        self._copies.clear()


def _link(source: Path, target: Path) -> bool:
    """Make a hard link; return False if that is impossible.

    The reason may be another file system, one without links, a file with too many links, or a file
    of another user.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A link to a symbolic link would be broken in a copy of a server's folder.
        os.link(source.resolve(), target)
    except FileExistsError:
        raise
    except OSError:
        return False
    return True


def _copy(source: Path, target: Path, progress: Progress) -> None:
    """Copy the bytes of a file into an empty one, in the kernel where it does that."""
    with (
        name_in_errors(target),
        source.open("rb", buffering=0) as reader,
        target.open("r+b") as written,
    ):
        if sys.platform == "linux":
            try:
                ends = reader.fileno(), written.fileno()
                while done := os.copy_file_range(*ends, _BYTES_AT_ONCE):
                    progress.advance(done)
            except OSError as error:
                if error.errno not in _NO_COPY_IN_KERNEL:
                    raise
        # Copy the rest: both files are at the position where the kernel stopped.
        while piece := reader.read(_BYTES_AT_ONCE):
            written.write(piece)
            progress.advance(len(piece))
        written.flush()
        os.fsync(written.fileno())
