"""A partitioned graph with every kind of table, and every source of its rows."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlite_features import write_rows

from hopper.config import make_config
from hopper.features import (
    CachedRows,
    FeatureSource,
    LocalRows,
    PartitionedRows,
    PregatheredRows,
    RemoteRows,
    RowKind,
    download_graph,
    open_graph,
)
from hopper.features.row_cache import RecentRows, RowCache
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.layout import stored_features
from hopper.graph.schema import Relation
from hopper.partition import PartitionedGraph, partition_graph
from tests.server_processes import serve_here

SERVERS = 3
SERVER = 1  # where the sources under test sit
SCHEMA = GraphSchema(
    name="tables",
    node_types={
        "paper": NodeType(90, 7, "float32"),
        "author": NodeType(41, 3, "float16"),
        "venue": NodeType(1, 2, "float32"),
        "word": NodeType(30),
        "ghost": NodeType(0, 4, "float32"),
        "journal": NodeType(23, 5, "int8"),
        "series": NodeType(17, 3, "bfloat16"),
    },
    relations={Relation("author", "writes", "paper"): EdgeType(60)},
    target="paper",
    labels={
        "paper": Labels("class", 5),
        "author": Labels("multi_hot", 6),
        "venue": Labels("float", 1),
        "word": Labels("float", 2),
    },
    splits={"train": 20},
)


def write_tables(out: Path) -> GraphDirectory:
    """Write random rows, so that no two are equal by accident."""
    generator = np.random.default_rng(23)
    with GraphWriter(out, SCHEMA) as writer:
        for relation, kind in SCHEMA.relations.items():
            counts = (SCHEMA.node_types[name].count for name in (relation.src, relation.dst))
            writer.topology(relation, *(generator.integers(0, n, kind.count) for n in counts))
        for name, kind in SCHEMA.node_types.items():
            if kind.feature_dim is not None:
                table = writer.features(name)
                if kind.feature_dtype in ("int8", "bfloat16"):
                    table[...] = generator.integers(0, 127, table.shape)
                else:
                    table[...] = generator.standard_normal(table.shape)
        for name, labels in SCHEMA.labels.items():
            count, columns = SCHEMA.node_types[name].count, labels.columns
            shape = (count, columns) if columns > 1 else (count,)
            least, most = (-1, labels.classes) if labels.kind == "class" else (0, 2)
            rows = generator.integers(least, most, shape)
            is_float = labels.kind == "float"
            writer.labels(name, (rows + is_float * generator.random(shape)).astype(labels.dtype))
        writer.split("train", generator.permutation(90)[:20])
    return GraphDirectory.open(out)


@dataclass
class Tables:
    """A partitioned graph, the directory that its rows are compared with, and its servers."""

    graph: PartitionedGraph
    addresses: list[str]
    single: PartitionedGraph
    """the same graph on one server"""
    directory: GraphDirectory

    def rows(self, graph: PartitionedGraph, kind: RowKind, node_type: str) -> NDArray[Any]:
        """[count, dim]: every row by global id, read from the graph directory."""
        read = self.directory.features if kind == "features" else self.directory.labels
        stored = read(node_type)[graph.original_ids(node_type)]
        return stored if stored.ndim == 2 else stored[:, None]

    def local_ids(self, node_type: str) -> NDArray[np.int64]:
        """Return the global ids of nodes on the server of the sources under test."""
        first, last = self.graph.book.offsets[node_type][SERVER : SERVER + 2].tolist()
        return np.arange(first, last)


@pytest.fixture(scope="session")
def tables(tmp_path_factory) -> Iterator[Tables]:
    """Three servers, in this process."""
    folder = tmp_path_factory.mktemp("features")
    directory = write_tables(folder / "graph")
    graph = partition_graph(directory, folder / "three", SERVERS, "random", 4)
    single = partition_graph(directory, folder / "one", 1, "random", 4)
    servers = serve_here(graph.path, SERVERS)
    yield Tables(graph, [server.address for server in servers], single, directory)
    for server in servers:
        assert server.stop(1.0)


def fill_caches(remote: RemoteRows) -> dict[str, RowCache]:
    """Make caches of every second paper, of the authors read last, and without room for venues."""
    caches = {
        name: kind(SCHEMA.node_types[name].count, room, stored.columns, stored.dtype)
        for name, kind, room in (("paper", RowCache, 45), ("author", RecentRows, 7),
                                 ("venue", RecentRows, 0), ("journal", RecentRows, 9),
                                 ("series", RecentRows, 5))
        if (stored := stored_features(SCHEMA.node_types[name]))
    }  # fmt: skip
    papers = np.arange(0, 90, 2)
    caches["paper"].put(papers, remote.gather("features", "paper", papers))
    return caches


@dataclass
class Source:
    """One implementation of FeatureSource and the ids it answers for."""

    rows: FeatureSource
    graph: PartitionedGraph
    ids: Callable[[str], NDArray[np.int64]]


@pytest.fixture
def remote(tables) -> Iterator[RemoteRows]:
    """Rows of all three servers, by request."""
    rows = RemoteRows(tables.graph, tables.addresses, 20.0)
    rows.wait_until_serving(20.0)
    yield rows
    rows.close()


@pytest.fixture(scope="module")
def downloaded(tables, tmp_path_factory) -> Iterator[RemoteRows]:
    """Rows of all servers, of which only the addresses are known."""
    graph = download_graph(tables.addresses, tmp_path_factory.mktemp("downloaded"))
    rows = RemoteRows(graph, tables.addresses, 20.0)
    yield rows
    rows.close()


@pytest.fixture(scope="module")
def own_source(tables, tmp_path_factory, serve_partitions) -> Iterator[PartitionedRows]:
    """Papers whose features come from databases, one for each server."""
    folder = tmp_path_factory.mktemp("databases")
    offsets, originals = tables.graph.book.offsets["paper"], tables.graph.original_ids("paper")
    features = tables.directory.features("paper")
    for server, (first, stop) in enumerate(itertools.pairwise(offsets)):
        rows = ((node, features[node]) for node in originals[first:stop])
        write_rows(folder / f"{server}.db", rows)
    name, options = "sqlite_features:SqliteFeatures", {"path": f"{folder}/{{server}}.db", "dim": 7}
    data = {"features": {"paper": name}, "features_options": {"paper": options}}
    config = make_config({"data": data | {"partitioned": str(tables.graph.path)}})
    graph = open_graph(config, SERVER)
    arguments = f"--features=paper={name}", f"--features-options=paper={json.dumps(options)}"
    addresses = serve_partitions(graph.path, SERVERS, *arguments)
    remote = RemoteRows(graph, addresses, 20.0)
    remote.wait_until_serving(20.0)
    yield PartitionedRows(graph, SERVER, remote)
    remote.close()


SOURCES: dict[str, Callable[[Tables, Any], FeatureSource]] = {
    "local": lambda tables, get: LocalRows(tables.graph, SERVER),
    "remote": lambda tables, get: get("remote"),
    "cached": lambda tables, get: CachedRows(get("remote"), fill_caches(get("remote"))),
    "partitioned": lambda tables, get: PartitionedRows(tables.graph, SERVER, get("remote")),
    "pregathered": lambda tables, get: PregatheredRows(
        PartitionedRows(tables.graph, SERVER, get("remote")), {"paper": [np.arange(90)]}
    ),
    "single server": lambda tables, get: PartitionedRows(tables.single, 0, None),
    "own source": lambda tables, get: get("own_source"),
    "own source, remote": lambda tables, get: get("own_source").remote,
    "without the directory": lambda tables, get: get("downloaded"),
}


@pytest.fixture(params=SOURCES)
def source(request, tables) -> Source:
    """Return every implementation in turn."""

    def all_ids(node_type: str) -> NDArray[np.int64]:
        return np.arange(SCHEMA.node_types[node_type].count)

    rows = SOURCES[request.param](tables, request.getfixturevalue)
    graph = tables.single if request.param == "single server" else tables.graph
    return Source(rows, graph, tables.local_ids if request.param == "local" else all_ids)
