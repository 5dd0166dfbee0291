"""Fetch a partitioned directory, or what some servers need of it, from an address."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import fsspec

from cache_server.store.manifest import file_checksum
from hopper.errors import GraphError, RequestError
from hopper.files.addresses import hide_passwords, path_of, refuse_address, remote_errors
from hopper.files.scratch import scratch_folder
from hopper.files.whole_files import UNFINISHED, remove_unfinished, replacing
from hopper.graph.publish import require_space
from hopper.partition.checksums import CHECKSUMS_FILE, read_checksums, server_of
from hopper.partition.description import DESCRIPTION_FILE
from hopper.timing.phases import Phases, Progress

_FILES_AT_ONCE: Final = 4


@hide_passwords()
def fetch_partitioned(
    address: str, out: Path, servers: Collection[int] = (), progress: Progress | None = None
) -> int:
    """Copy a partitioned directory from an address of fsspec, such as ``s3://bucket/parts``, or
    from another folder, and check its checksums.

    A copy that was interrupted goes on: files that are there and whole are not read again. Of
    several processes that copy to one folder, one does and the others wait. The folder can be used
    once ``partition.json`` and ``checksums.json`` are in it, which come last.

    Parameters
    ----------
    address: with ``checksums.json`` in it.
    out: a folder on this machine, which is made.
    servers: the servers whose rows are wanted; empty = all.

    Returns
    -------
    The bytes of the copy.

    Raises
    ------
    GraphError: there is no partitioned directory, or a file differs from its checksum; names it.
    RequestError: a server does not exist, or the folder has other content or too little space.
    StorageError: the address cannot be read; names it.
    """
    refuse_address(out)
    source = _Source(address)
    with scratch_folder("hopper-checksums-") as scratch:
        source.read(CHECKSUMS_FILE, scratch / CHECKSUMS_FILE)
        try:
            all_files = read_checksums(scratch).files
        except GraphError as error:
            raise GraphError(str(error).replace(str(scratch), str(source.path))) from error
        checksums = (scratch / CHECKSUMS_FILE).read_bytes()
    known = {server for name in all_files if (server := server_of(name)) is not None}
    for server in servers:
        if server not in known:
            raise RequestError(f"--server {server}: expected 0 to {max(known)}")
    wanted = {None, *servers} if servers else {None, *known}
    files = {name: file for name, file in all_files.items() if server_of(name) in wanted}
    phases = Phases(progress)
    with _alone_in(out, phases):
        _prepare(out, all_files, {name: file.size for name, file in files.items()})
        if (out / CHECKSUMS_FILE).exists() and (out / CHECKSUMS_FILE).read_bytes() != checksums:
            # A mix of two divisions must not be opened.
            for name in (CHECKSUMS_FILE, DESCRIPTION_FILE):
                (out / name).unlink(missing_ok=True)

        def copy(name: str) -> None:
            source.copy(name, out / name, files[name].checksum)

        with (
            phases.phase("files", len(files) - 1) as bar,
            ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="fetch") as pool,
        ):
            # Without its description a directory cannot be opened.
            for _ in pool.map(copy, files.keys() - {DESCRIPTION_FILE}):
                bar.advance(1)
        copy(DESCRIPTION_FILE)
        with replacing(out / CHECKSUMS_FILE) as unfinished:
            unfinished.write_bytes(checksums)
    return sum(file.size for file in files.values())


class _Source:
    """The directory that files are copied from."""

    def __init__(self, address: str) -> None:
        self.path = path_of(address)
        self._system, self._root = fsspec.core.url_to_fs(str(self.path))

    def read(self, name: str, to: Path) -> None:
        """Copy a file."""
        with remote_errors(self.path):
            try:
                self._system.get_file(f"{self._root}/{name}", str(to))
            except FileNotFoundError as error:
                raise GraphError(f"{self.path}/{name}: missing file") from error

    def copy(self, name: str, target: Path, checksum: str) -> None:
        """Copy a file to its place, unless it is there; refuse one with another checksum."""
        if target.is_file() and file_checksum(target) == checksum:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as unfinished:
            self.read(name, unfinished)
            if file_checksum(unfinished) != checksum:
                where = f"{self.path}/{name}"
                raise GraphError(
                    f"{where}: altered since it was written: expected checksum {checksum}"
                )


@contextmanager
def _alone_in(folder: Path, phases: Phases) -> Iterator[None]:
    """Make a folder, wait until no other process copies to it, and let others wait."""
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder}: expected a folder; it is a file")
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some file systems cannot lock folders.
        with phases.phase("wait for another fetch"), suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _prepare(out: Path, known: Collection[str], sizes: Mapping[str, int]) -> None:
    """Refuse a folder with other files than ``known`` ones, or on a disk that lacks room for what
    is missing of ``sizes``, the bytes by name."""
    there = {file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()}
    for name in sorted(there - {*known, CHECKSUMS_FILE}):
        if name.removesuffix(UNFINISHED) not in known:
            raise RequestError(f"{out / name}: not of this directory; choose another --out")
    remove_unfinished(out)
    require_space(out, sum(size for name, size in sizes.items() if name not in there))
