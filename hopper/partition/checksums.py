"""Checks of a partitioned directory, its checksums, and the fingerprint of the division.

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

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import BaseModel, Field, StringConstraints, TypeAdapter

from cache_server.store.manifest import MANIFEST, file_checksum, set_division
from cache_server.store.mapped_rows import exceed_memory
from hopper.errors import GraphError
from hopper.graph.array_file import iter_pieces
from hopper.graph.check_topology import check_bounds, check_lists
from hopper.graph.check_values import check_labels, check_split, find_outside
from hopper.graph.json_file import parse_json, read_json
from hopper.graph.layout import links_file, split_file
from hopper.partition.description import (
    DESCRIPTION_FILE,
    MAP_NAMES,
    MapName,
    map_file,
    server_folder,
)
from hopper.partition.layout import DividedTopology
from hopper.partition.partitioned_graph import PartitionedGraph

CHECKSUMS_FILE: Final = "checksums.json"

_ROW_FOLDERS: Final = frozenset({"features", "edge_features"})
_SERVER: Final = re.compile(r"server-(\d+)/")
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
    return parse_json(TypeAdapter(Checksums), content, str(file))


def read_division(path: Path) -> str:
    """Read the fingerprint of a partitioned directory; "" if it has no checksums."""
    return read_checksums(path).division if (path / CHECKSUMS_FILE).exists() else ""


def server_of(name: str) -> int | None:
    """Return the server in whose folder a file lies; None for what all need."""
    match = _SERVER.match(name)
    return int(match[1]) if match else None


def check_sizes(path: Path, servers: Sequence[int]) -> dict[str, FileChecksum]:
    """Check the sizes of all files that some servers need, and return these by relative path.
    Folders of other servers may be missing. A :class:`GraphError` names a file that is missing or
    altered, as in other checks."""
    files = _find_needed(path, servers)
    for name, expected in files.items():
        with _name_in_errors(path / name):
            if not (path / name).is_file():
                raise GraphError(f"{path / name}: missing file, or no file")
            size = (path / name).stat().st_size
        _compare(path / name, f"{expected.size:,} bytes", f"{size:,} bytes")
    return files


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
    """Check the checksums of rows of features, and return whether everything was checked; the check
    ends when ``go_on``, which is told the bytes read so far after each piece, returns False.

    Files that do not fit memory together leave no pages in the page cache, where they would take
    the place of rows that are read again.
    """
    files = {name: file for name, file in _find_needed(path, servers).items() if _is_rows(name)}
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


def check_partition(graph: PartitionedGraph, servers: Sequence[int]) -> None:
    """Check topology, maps between ids, and splits, with the folders of some servers; a
    :class:`GraphError` names file and index of what does not fit."""
    for topology, relation, folder in graph.layout.stored_topologies(servers):
        check_bounds(topology, relation, folder)
        if isinstance(graph.layout, DividedTopology):
            check_lists(topology, relation, folder)
    # Where relations are divided, nodes keep their ids.
    for node_type in () if graph.partitions else graph.schema.node_types:
        _check_maps(graph, node_type)
    for name in graph.schema.splits:
        where = f"{split_file(graph.path, name)}: split {name}"
        links = bool(graph.schema.target_relations)
        # Not all target edges are stored, so the number of their ids is not known here.
        most = np.iinfo(np.int64).max if links else graph.schema.target_count
        check_split(graph.split(name), most, where)
        if links:
            _check_links(graph, name)


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


def _find_needed(path: Path, servers: Sequence[int]) -> dict[str, FileChecksum]:
    """Find the files that must be there; folders of other servers may be missing."""

    def is_needed(name: str) -> bool:
        server = server_of(name)
        if server is None or server in servers:
            return True
        return server_folder(path, server).is_dir() and not _is_rows(name)

    files = read_checksums(path).files
    return {name: file for name, file in files.items() if is_needed(name)}


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


def _check_links(graph: PartitionedGraph, split: str) -> None:
    """Check that the ends of a split's links are nodes of the right types; check their labels."""
    links, relations = graph.links(split), graph.schema.target_relations
    where = f"{links_file(graph.path, split)}: links of {split}"
    index = find_outside(links.relations, 0, len(relations))
    if index >= 0:
        raise GraphError(
            f"{where}: at {index}: expected one of {len(relations)} target relations, given "
            f"{int(links.relations[index])}"
        )
    for number, relation in enumerate(relations):
        of_relation = links.relations == number
        for end, node_type in ((links.src, relation.src), (links.dst, relation.dst)):
            count = graph.schema.node_types[node_type].count
            if find_outside(end[of_relation], 0, count) >= 0:
                raise GraphError(f"{where}: expected nodes of {node_type} in [0, {count})")
    if links.labels is not None and graph.schema.target_labels is not None:
        where = f"{links_file(graph.path, split, 'labels')}: labels of {split}"
        check_labels(links.labels, graph.schema.target_labels, where)


def _check_maps(graph: PartitionedGraph, node_type: str) -> None:
    """Check that the two maps of a node type are inverse to each other."""
    maps, where = dict[MapName, NDArray[np.int64]](), dict[MapName, str]()
    for name in MAP_NAMES:
        ids = maps[name] = graph.layout.map(node_type, name)
        where[name] = f"{map_file(graph.path, node_type, name)}: {name} of {node_type}"
        index = find_outside(ids, 0, ids.size)
        if index >= 0:
            raise GraphError(
                f"{where[name]}: at {index}: expected an id in [0, {ids.size}), given "
                f"{int(ids[index])}"
            )
    for first, originals in iter_pieces(maps["original_ids"]):
        back = maps["global_ids"][originals]
        wrong = np.flatnonzero(back != np.arange(first, first + originals.size))
        if wrong.size:
            raise GraphError(
                f"{where['global_ids']}: expected {first + int(wrong[0])} of original id "
                f"{int(originals[wrong[0]])}, given {int(back[wrong[0]])}"
            )
