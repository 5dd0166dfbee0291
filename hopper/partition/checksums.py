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
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import xxhash
from pydantic import BaseModel, Field, StringConstraints, ValidationError

from cache_server.store.manifest import MANIFEST, file_checksum, set_division
from cache_server.store.mapped_rows import exceed_memory
from hopper.errors import GraphError
from hopper.graph.json_file import read_json
from hopper.partition.file_names import DESCRIPTION_FILE, server_folder

CHECKSUMS_FILE: Final = "checksums.json"

_ROW_FOLDERS: Final = frozenset({"features", "edge_features"})
_SERVER: Final = re.compile(r"server-(\d+)")
_PIECE_BYTES: Final = 4 << 20
_THREADS: Final = 4


class FileChecksum(NamedTuple):
    """A file's bytes when it was written, and its checksum in hexadecimal."""

    size: int
    checksum: Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]


class Checksums(BaseModel):
    """The content of ``checksums.json``: files by their path relative to the directory."""

    version: Literal[1] = Field(alias="schema")
    division: str
    files: dict[str, FileChecksum]


def seal_directory(work: Path) -> None:
    """Write ``checksums.json`` as the last file of a partitioned directory, and the fingerprint
    into the servers' ``shard.json``."""
    paths = {file.relative_to(work).as_posix(): file for file in work.rglob("*") if file.is_file()}
    manifests = {name: paths.pop(name) for name in list(paths) if paths[name].name == MANIFEST}
    files = _compute_checksums(paths)
    division = _digest({name: file for name, file in files.items() if name != DESCRIPTION_FILE})
    for manifest in manifests.values():
        set_division(manifest.parent, division)
    files |= _compute_checksums(manifests)
    content = {"schema": 1, "division": division, "files": files}
    content["checksum"] = _digest(content)
    (work / CHECKSUMS_FILE).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def read_checksums(path: Path) -> Checksums:
    """Read ``checksums.json``; a :class:`GraphError` says that it is missing or altered."""
    file = path / CHECKSUMS_FILE
    content = read_json(
        file,
        "no such file: the graph was divided by an older version, which wrote no checksums; divide "
        'it again with `hopper partition`, or train with data.verify = "off"',
    )
    if content.pop("checksum", None) != _digest(content):
        raise GraphError(f"{file}: altered since it was written: its checksum is of other content")
    try:
        return Checksums.model_validate(content)
    except ValidationError as error:
        raise GraphError(f"{file}: cannot be read: {error.errors()[0]}") from None


def read_division(path: Path) -> str:
    """Read the fingerprint of a partitioned directory; "" if it has no checksums."""
    return read_checksums(path).division if (path / CHECKSUMS_FILE).exists() else ""


def check_sizes(path: Path, servers: Sequence[int]) -> dict[str, FileChecksum]:
    """Check the sizes of all files that some servers need, and return these by relative path.

    Folders of other servers may be missing, because a machine may have a copy of the files that it
    needs. A :class:`GraphError` names a file that is missing or altered, as in other checks.
    """
    files = read_checksums(path).files
    required = {name: file for name, file in files.items() if _is_needed(name, path, servers)}
    for name, expected in required.items():
        with _name_in_errors(path / name):
            if not (path / name).is_file():
                raise GraphError(f"{path / name}: missing file, or no file")
            size = (path / name).stat().st_size
        _compare(path / name, f"{expected.size:,} bytes", f"{size:,} bytes")
    return required


def check_structure(path: Path, servers: Sequence[int]) -> None:
    """Check the sizes of all files, and the checksums of all files but rows of features."""
    files = check_sizes(path, servers)

    def check(name: str) -> None:
        with _name_in_errors(path / name):
            checksum = file_checksum(path / name)
        _compare(path / name, f"checksum {files[name].checksum}", f"checksum {checksum}")

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="checksum") as pool:
        list(pool.map(check, [name for name in files if not _is_rows(name)]))


def check_rows(
    path: Path, servers: Sequence[int], go_on: Callable[[int], bool] = lambda _nbytes: True
) -> bool:
    """Check the checksums of rows of features, and return whether everything was checked.

    Files that do not fit memory together leave no pages in the page cache, where they would take
    the place of rows that are read again.

    Parameters
    ----------
    go_on: called with the number of bytes that have been read, after each piece of a few MiB. The
        check ends when it returns False.
    """
    files = {
        name: expected
        for name, expected in read_checksums(path).files.items()
        if _is_rows(name) and _is_needed(name, path, servers)
    }
    leave_no_pages, nbytes = exceed_memory(sum(file.size for file in files.values())), 0
    for name, expected in files.items():
        digest = xxhash.xxh3_128()
        with _name_in_errors(path / name), (path / name).open("rb", buffering=0) as stream:
            while piece := stream.read(_PIECE_BYTES):
                if leave_no_pages:
                    # Pages that a process has mapped and read stay.
                    os.posix_fadvise(stream.fileno(), 0, stream.tell(), os.POSIX_FADV_DONTNEED)
                digest.update(piece)
                nbytes += len(piece)
                if not go_on(nbytes):
                    return False
        found = f"checksum {digest.hexdigest()}"
        _compare(path / name, f"checksum {expected.checksum}", found)
    return True


def _compute_checksums(paths: Mapping[str, Path]) -> dict[str, Any]:
    """Compute bytes and checksums by name; a file with several names is read once."""
    stats = {name: path.stat() for name, path in paths.items()}
    distinct = {(stat.st_dev, stat.st_ino): paths[name] for name, stat in stats.items()}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="checksum") as pool:
        digests = dict(zip(distinct, pool.map(file_checksum, distinct.values()), strict=True))
    return {n: [stat.st_size, digests[stat.st_dev, stat.st_ino]] for n, stat in stats.items()}


def _digest(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(canonical.encode())


def _is_rows(name: str) -> bool:
    """Return whether a file holds features, of which there may be more than memory holds."""
    return not _ROW_FOLDERS.isdisjoint(name.split("/")[:-1])


def _is_needed(name: str, path: Path, servers: Sequence[int]) -> bool:
    """Return whether a file must be there; folders of other servers may be missing."""
    match = _SERVER.fullmatch(name.split("/", 1)[0])
    if match is None or int(match[1]) in servers:
        return True
    return server_folder(path, int(match[1])).is_dir() and not _is_rows(name)


def _compare(file: Path, expected: str, found: str) -> None:
    if found != expected:
        raise GraphError(
            f"{file}: altered since it was written: expected {expected}, found {found}; copy it "
            "anew, or divide the graph again"
        )


@contextmanager
def _name_in_errors(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise GraphError(f"{file}: cannot be read: {error.strerror}") from error
