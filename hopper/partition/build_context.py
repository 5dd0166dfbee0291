"""What parts of a partitioned directory are built from: the graph, and its nodes' global ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.graph import layout
from hopper.graph.array_file import create_array, iter_pieces, open_array, release_pages
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import Relation
from hopper.partition.file_names import MAP_NAMES, MapName, map_file

Ids = NDArray[np.int64]


class IdMaps(NamedTuple):
    """The two maps of a node type's ids, as memory maps, and the bounds of each server's ids."""

    offsets: Ids
    """[servers + 1] int64"""
    original_ids: Ids
    """[count] int64, by global id"""
    global_ids: Ids
    """[count] int64, by original id"""


@dataclass(frozen=True)
class BuildContext:
    """The input of every part of a partitioned directory; a process that can read these folders can
    build any part."""

    graph: GraphDirectory
    work: Path
    """the directory that is being written"""
    offsets: dict[str, Ids]
    """by node type [servers + 1] int64, bounds of the global ids of each server's nodes"""

    @property
    def servers(self) -> int:
        """Number of servers."""
        return next(iter(self.offsets.values())).size - 1

    @cached_property
    def maps(self) -> dict[str, IdMaps]:
        """The maps of ids of every node type."""

        def open_map(node_type: str, name: MapName) -> Ids:
            count = int(self.offsets[node_type][-1])
            return open_array(map_file(self.work, node_type, name), name, np.int64, (count,))

        return {
            node_type: IdMaps(offsets, *(open_map(node_type, name) for name in MAP_NAMES))
            for node_type, offsets in self.offsets.items()
        }

    def whole(self, relation: Relation, name: layout.StoredArray) -> NDArray[Any]:
        """Map an array of a relation's whole topology in global ids, while it is there."""
        # An empty array cannot be mapped. Nothing is checked, since this work wrote the file.
        mode: Literal["r"] | None = "r" if self.edges(relation) or name == "indptr" else None
        file = layout.topology_file(self.work, relation, name)
        return np.asarray(np.load(file, mmap_mode=mode, allow_pickle=False))

    def edges(self, relation: Relation) -> int:
        """Return the number of edges of a relation."""
        return self.graph.schema.relations[relation].count

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the maps itself.
        return BuildContext, (self.graph, self.work, self.offsets)


def number_nodes(homes: NDArray[np.int32], servers: int, work: Path, node_type: str) -> Ids:
    """Give the nodes of one type global ids, contiguous by server and in order of original id
    within a server; write both maps, and return the bounds of each server's ids."""
    counts = np.zeros(servers, np.int64)
    for _, piece in iter_pieces(homes):
        counts += np.bincount(piece, minlength=servers)
    offsets = np.concatenate(([0], np.cumsum(counts)))
    original_ids, global_ids = (
        create_array(map_file(work, node_type, name), np.int64, (homes.size,)) for name in MAP_NAMES
    )
    _deal(homes, offsets[:-1].copy(), np.asarray(global_ids), np.asarray(original_ids))
    release_pages(original_ids, global_ids, homes)
    return offsets


@kernel
def _deal(homes: NDArray[np.int32], cursor: Ids, global_ids: Ids, original_ids: Ids) -> None:
    for node in range(homes.size):
        global_id = cursor[homes[node]]
        cursor[homes[node]] += 1
        global_ids[node] = global_id
        original_ids[global_id] = node
