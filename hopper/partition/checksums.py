"""Checksums of a partitioned directory, and the fingerprint of the division.

``checksums.json`` names every file with its bytes and its XXH3 of 128 bits. It is written last, and
has a checksum of itself. The fingerprint is a checksum of all files but ``partition.json``, which
has the times that dividing took. So dividing the same graph again in the same way gives the same
fingerprint. Every server's ``shard.json`` has it too, which reveals a server of another division.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import xxhash

from cache_server.checksum import file_checksum
from cache_server.store.manifest import MANIFEST, set_division
from cache_server.store.mapped_rows import exceed_memory
from hopper.errors import GraphError
from hopper.graph.json_file import read_json
from hopper.partition.file_names import DESCRIPTION_FILE, server_folder

CHECKSUMS_FILE: Final = "checksums.json"
SCHEMA_VERSION: Final = 1
Verify = Literal["quick", "full", "off"]

_ROW_FOLDERS: Final = frozenset({"features", "edge_features"})
_SERVER: Final = re.compile(r"server-(\d+)")
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
_PIECE_BYTES: Final = 4 << 20
_THREADS: Final = 4


@dataclass(frozen=True)
class FileChecksum:
    """A file's bytes when it was written, and its checksum in hexadecimal."""

    size: int
    checksum: str


@dataclass(frozen=True)
class Checksums:
    """The content of ``checksums.json``.

    Attributes
    ----------
    division: the fingerprint of the division.
    files: the files by their path relative to the directory, with ``/``.
    """

    division: str
    files: Mapping[str, FileChecksum]


def seal_directory(work: Path) -> None:
    """Write ``checksums.json`` as the last file of a partitioned directory.

    This also writes the fingerprint into the servers' ``shard.json``.
    """
    paths = sorted(path for path in work.rglob("*") if path.is_file())
    parts = {path.relative_to(work).as_posix(): path for path in paths}
    manifests = {name: path for name, path in parts.items() if path.name == MANIFEST}
    files = _compute_checksums(
        {name: path for name, path in parts.items() if name not in manifests}
    )
    division = xxhash.xxh3_128_hexdigest(
        _canonical({name: file for name, file in files.items() if name != DESCRIPTION_FILE})
    )
    for path in manifests.values():
        set_division(path.parent, division)
    files |= _compute_checksums(manifests)
    content = {"schema": SCHEMA_VERSION, "division": division, "files": files}
    content["checksum"] = xxhash.xxh3_128_hexdigest(_canonical(content))
    (work / CHECKSUMS_FILE).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def read_checksums(path: Path) -> Checksums:
    """Read ``checksums.json``.

    Raises
    ------
    GraphError: it is missing or altered.
    """
    file = path / CHECKSUMS_FILE
    content = read_json(
        file,
        "no such file: the graph was divided by an older version, which wrote no checksums; divide "
        'it again with `hopper partition`, or train with data.verify = "off"',
    )
    checksum = content.pop("checksum", None)
    if checksum != xxhash.xxh3_128_hexdigest(_canonical(content)):
        raise GraphError(f"{file}: altered since it was written: its checksum is of other content")
    try:
        files = {name: FileChecksum(*fields) for name, fields in content["files"].items()}
        is_valid = all(
            isinstance(entry.size, int) and _DIGEST.fullmatch(entry.checksum)
            for entry in files.values()
        )
        if content["schema"] != SCHEMA_VERSION or not is_valid:
            raise ValueError(f"schema {content['schema']!r}")
        return Checksums(str(content["division"]), files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GraphError(f"{file}: cannot be read: {error!r}") from None


def read_division(path: Path) -> str:
    """Read the fingerprint of a partitioned directory; "" if it has no checksums.

    Raises
    ------
    GraphError: ``checksums.json`` is altered.
    """
    return read_checksums(path).division if (path / CHECKSUMS_FILE).exists() else ""


def check_sizes(path: Path, servers: Sequence[int]) -> dict[str, FileChecksum]:
    """Check the sizes of all files that some servers need.

    Returns
    -------
    The files, by path relative to the directory.

    Raises
    ------
    GraphError: a file is missing, or has another size. The text names it.
    """
    files = read_checksums(path).files
    required = {name: file for name, file in files.items() if _is_needed(name, path, servers)}
    for name, expected in required.items():
        _check_size(path / name, expected)
    return required


def check_structure(path: Path, servers: Sequence[int]) -> None:
    """Check the sizes of all files, and the checksums of all files but rows of features.

    Only the folders of these servers must be there, because a machine may have a copy of the files
    that it needs.

    Raises
    ------
    GraphError: a file is missing, altered, or of another division. The text names it.
    """
    files = check_sizes(path, servers)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="checksum") as pool:
        structure = [name for name in files if not _is_rows(name)]
        for _ in pool.map(lambda name: _check(path / name, files[name]), structure):
            pass


def check_rows(
    path: Path, servers: Sequence[int], go_on: Callable[[int], bool] = lambda _nbytes: True
) -> bool:
    """Check the checksums of rows of features.

    Files that do not fit memory together leave no pages in the page cache, where they would take
    the place of rows that are read again.

    Parameters
    ----------
    go_on: called with the number of bytes that have been read, after each piece of a few MiB. The
        check ends when it returns False.

    Returns
    -------
    Whether everything was checked.

    Raises
    ------
    GraphError: a file is missing or altered. The text names it.
    """
    files = {
        name: expected
        for name, expected in read_checksums(path).files.items()
        if _is_rows(name) and _is_needed(name, path, servers)
    }
    leave_no_pages = exceed_memory(sum(expected.size for expected in files.values()))
    nbytes = 0
    for name, expected in files.items():
        digest = xxhash.xxh3_128()
        for piece in _read_pieces(path / name, leave_no_pages):
            digest.update(piece)
            nbytes += len(piece)
            if not go_on(nbytes):
                return False
        _compare(path / name, expected, digest.hexdigest())
    return True


def _compute_checksums(paths: Mapping[str, Path]) -> dict[str, Any]:
    """Compute bytes and checksums by name; a file with several names is read once."""
    stats = {name: path.stat() for name, path in paths.items()}
    files = {name: (stat.st_dev, stat.st_ino) for name, stat in stats.items()}
    distinct = {files[name]: path for name, path in paths.items()}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="checksum") as pool:
        digests = dict(zip(distinct, pool.map(file_checksum, distinct.values()), strict=True))
    return {name: [stats[name].st_size, digests[file]] for name, file in files.items()}


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _is_rows(name: str) -> bool:
    """Return whether a file holds features, of which there may be more than memory holds."""
    return not _ROW_FOLDERS.isdisjoint(name.split("/")[:-1])


def _is_needed(name: str, path: Path, servers: Sequence[int]) -> bool:
    """Return whether a file must be there; folders of other servers may be missing."""
    match = _SERVER.fullmatch(name.split("/", 1)[0])
    if match is None or int(match[1]) in servers:
        return True
    return server_folder(path, int(match[1])).is_dir() and not _is_rows(name)


def _check(file: Path, expected: FileChecksum) -> None:
    try:
        _compare(file, expected, file_checksum(file))
    except OSError as error:
        raise GraphError(f"{file}: cannot be read: {error.strerror}") from error


def _compare(file: Path, expected: FileChecksum, checksum: str) -> None:
    if checksum != expected.checksum:
        raise GraphError(
            f"{file}: altered since it was written: expected checksum {expected.checksum}, found "
            f"{checksum}; copy it anew, or divide the graph again"
        )


def _check_size(file: Path, expected: FileChecksum) -> None:
    try:
        if not file.is_file():
            raise GraphError(f"{file}: missing file, or no file")
        size = file.stat().st_size
    except OSError as error:
        raise GraphError(f"{file}: cannot be read: {error.strerror}") from error
    if size != expected.size:
        raise GraphError(
            f"{file}: altered since it was written: expected {expected.size:,} bytes, found "
            f"{size:,}; copy it anew, or divide the graph again"
        )


def _read_pieces(file: Path, leave_no_pages: bool) -> Iterator[bytes]:
    try:
        with file.open("rb", buffering=0) as stream:
            while piece := stream.read(_PIECE_BYTES):
                if leave_no_pages:
                    # Pages that a process has mapped and read stay.
                    os.posix_fadvise(stream.fileno(), 0, stream.tell(), os.POSIX_FADV_DONTNEED)
                yield piece
    except OSError as error:
        raise GraphError(f"{file}: cannot be read: {error.strerror}") from error
