"""The source of averages: a graph directory, or a server's part of a graph divided by relation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.feature_codec import CODECS
from hopper.errors import RequestError
from hopper.graph.array_file import create_array
from hopper.graph.directory import GraphDirectory
from hopper.graph.publish import folder_beside
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Topology
from hopper.hetero.learnable import first_rows
from hopper.hetero.precompute.neighbours import Rows
from hopper.partition.by_relation import ByRelation
from hopper.partition.description import DESCRIPTION_FILE
from hopper.partition.partitioned_graph import PartitionedGraph

_BLOCK_ROWS: Final = 1 << 16


@dataclass(frozen=True)
class StoredGraph:
    """A graph directory, or one server's part of a graph divided by relation.

    Attributes
    ----------
    graph: the graph or the partitioned graph.
    server: the server whose part it is.
    roots: the relations into the target that are averaged here; None = all.
    """

    graph: GraphDirectory | PartitionedGraph
    server: int = 0
    roots: tuple[Relation, ...] | None = None

    @property
    def schema(self) -> GraphSchema:
        """The schema of the whole graph."""
        return self.graph.schema

    def topology(self, relation: Relation) -> Topology:
        """Return a relation's in-edges, in original ids."""
        if isinstance(self.graph, PartitionedGraph):
            return self.graph.topology(relation, self.server)
        return self.graph.topology(relation)

    def features(self, node_type: str) -> NDArray[np.floating]:
        """Return a type's features [count, columns] in their stored form."""
        if isinstance(self.graph, PartitionedGraph):
            rows = self.graph.features(node_type, self.server)
            assert rows is not None
            return rows
        return self.graph.features(node_type)

    def labels(self, node_type: str) -> NDArray[np.generic]:
        """Return a type's labels as the graph directory stores them."""
        if isinstance(self.graph, PartitionedGraph):
            rows = self.graph.labels(node_type, self.server)
            assert rows is not None
            return rows
        return self.graph.labels(node_type)


def open_stored(path: Path) -> list[StoredGraph]:
    """Open a graph directory, or every server's part of a graph divided by relation.

    The root relations of the parts are disjoint.

    Raises
    ------
    GraphError: the directory is damaged.
    RequestError: the graph is divided in another way, or its relations are cut.
    """
    if not (path / DESCRIPTION_FILE).exists():
        return [StoredGraph(GraphDirectory.open(path, check="shapes"))]
    graph = PartitionedGraph.open(path)
    if not isinstance(graph.layout, ByRelation):
        raise RequestError(
            f"{path}: expected a graph directory, or one divided by relation (hopper partition "
            f"--method meta); {graph.layout.explain('this')}"
        )
    if not all(partition.is_whole for partition in graph.partitions):
        raise RequestError(f"{path}: expected whole relations; some are cut (--server-memory)")
    return [
        StoredGraph(graph, server, partition.roots)
        for server, partition in enumerate(graph.partitions)
        if partition.place == 0
    ]


class Workspace:
    """Rows for averaging, as float32: features, random rows, and averages.

    Averages are in mapped files without a name, so memory does not limit them.

    Parameters
    ----------
    random_dim: the width of random rows for types without features; 0 = such types have no rows.
    seed: the seed of random rows, which also depend on the type and on the node's id.
    """

    def __init__(self, stored: StoredGraph, folder: Path, random_dim: int, seed: int) -> None:
        self.stored = stored
        self._folder = folder
        self._random_dim = random_dim
        self._seed = seed
        self._rows: dict[str, Rows] = {}

    def rows(self, node_type: str) -> Rows:
        """Return a type's features, or its random rows: [count, dim] float32."""
        if node_type not in self._rows:
            self._rows[node_type] = self._make_rows(node_type)
        return self._rows[node_type]

    def new(self, node_type: str, dim: int) -> Rows:
        """Return a mapped array of zeros, [count, dim] float32, for a type's nodes.

        Its disk space is freed together with the array.
        """
        shape = self.stored.schema.node_types[node_type].count, dim
        file = self._folder / "rows.npy"
        rows: Rows = create_array(file, np.float32, shape)
        file.unlink()
        return rows

    def _make_rows(self, node_type: str) -> Rows:
        kind = self.stored.schema.node_types[node_type]
        if kind.feature_dim is None:
            out = self.new(node_type, self._random_dim)
            for first in range(0, kind.count, _BLOCK_ROWS):
                ids = np.arange(first, min(first + _BLOCK_ROWS, kind.count))
                out[ids] = first_rows(self._seed, node_type, ids, self._random_dim)
            return out
        features = self.stored.features(node_type)
        if features.dtype == np.float32:
            return np.asarray(features, np.float32)
        assert kind.feature_dtype is not None
        form = CODECS[kind.feature_dtype]
        out = self.new(node_type, kind.feature_dim)
        for first in range(0, kind.count, _BLOCK_ROWS):
            out[first : first + _BLOCK_ROWS] = form.decode(features[first : first + _BLOCK_ROWS])
        return out


@contextmanager
def workspace(stored: StoredGraph, beside: Path, random_dim: int, seed: int) -> Iterator[Workspace]:
    """Open a workspace with its files beside a path; arguments as in :class:`Workspace`."""
    with folder_beside(beside) as folder:
        yield Workspace(stored, folder, random_dim, seed)
