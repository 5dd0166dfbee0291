"""Times of nodes and edges: read from tables and arrays, kept, and split by."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph
from hopper.graph.importers.arrays import set_column
from hopper.graph.importers.tables import Table
from hopper.graph.schema import Relation
from hopper.partition import PartitionedGraph, partition_graph

pytestmark = pytest.mark.filterwarnings("ignore:split by time")

EDGE = Relation("node", "edge", "node")


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "nodes.csv").write_text(
        "id,label,time,size\na,0,2026-05-31,1\nb,1,2026-05-31T12:00:00+02:00,2\nc,0,-5,3\nd,1,7,4\n"
    )
    (folder / "edges.csv").write_text("src,dst,time,sum\na,b,30,1.5\nb,c,10,2.5\nd,c,20,3.5\n")
    return folder


def test_times_are_read_from_tables(tables: Path, tmp_path: Path) -> None:
    """Dates become seconds since 1970, in UTC unless they name a zone, and are no features."""
    midnight = int(np.datetime64("2026-05-31", "s").astype(np.int64))
    options = ImportOptions(add_reverse="all", split=RandomSplit(0.5, 0.25, by_time=True))
    notes = import_graph("csv", str(tables), tmp_path / "graph", options)
    assert "split by time: 2 train, 1 val, 1 test" in notes
    graph = GraphDirectory.open(tmp_path / "graph")
    assert graph.times("node").tolist() == [midnight, midnight + 10 * 3600, -5, 7]
    kinds = graph.schema.node_types["node"], graph.schema.relations[EDGE]
    assert [[one.name for one in kind.columns] for kind in kinds] == [["size"], ["sum"]]
    reverse = Relation("node", "rev_edge", "node")
    assert graph.times(reverse).tolist() == [30, 10, 20]
    assert graph.schema.timed == ["node", EDGE, reverse]
    assert graph.split("train").tolist() == [2, 3]
    assert graph.split("test").tolist() == [1]
    (tables / "nodes.csv").write_text("id,label,time\na,0,yesterday\n")
    with pytest.raises(GraphError, match=r"line 2: column time: expected an integer, or a date"):
        import_graph("csv", str(tables), tmp_path / "refused")


def test_times_are_read_from_parquet(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    folder = tmp_path / "parquet"
    folder.mkdir()
    dates = ["2026-05-31", "2026-05-31T10:00:00", "2026-06-01", "2026-06-02"]
    nodes = {
        "id": list("abcd"),
        "label": [0, 1, 0, 1],
        "time": pandas.to_datetime(dates, format="ISO8601"),
    }
    pandas.DataFrame(nodes).to_parquet(folder / "nodes.parquet")
    edges = {"src": list("ab"), "dst": list("bc"), "time": [3, 1]}
    pandas.DataFrame(edges).to_parquet(folder / "edges.parquet")
    import_graph("parquet", str(folder), tmp_path / "graph")
    graph = GraphDirectory.open(tmp_path / "graph")
    seconds = np.array(dates, "datetime64[s]").astype(np.int64)
    assert graph.times("node").tolist() == seconds.tolist()
    assert graph.times(EDGE).tolist() == [3, 1]
    assert graph.schema.node_types["node"].feature_dim is None


@pytest.mark.parametrize("topology", ["replicated", "partitioned", "halo:1"])
def test_neighbour_lists_by_time(topology: Any, tmp_path: Path) -> None:
    """An edge may be seen from its own time on, or from its source's if that is later."""
    generator = np.random.default_rng(3)
    edges, edge_times = generator.integers(0, 30, (2, 400)), generator.integers(0, 9, 400)
    node_times = generator.integers(0, 9, 30)
    graph = GraphDirectory.from_arrays(
        tmp_path / "graph",
        edges,
        features=np.ones((30, 2)),
        labels=np.arange(30) % 3,
        times={"node": node_times, EDGE: edge_times},
        splits={"train": np.arange(10)},
    )
    partition_graph(graph, tmp_path / "parts", 3, "random", topology=topology)
    parts = PartitionedGraph.open(tmp_path / "parts")
    original = parts.original_ids("node")
    assert np.array_equal(parts.times("node"), node_times)
    for server in (None, 0, 1, 2):
        topology_of_server = parts.topology(EDGE, server)
        assert topology_of_server.times is not None
        assert topology_of_server.by_time is not None
        edges_seen = 0
        for start, stop in itertools.pairwise(topology_of_server.indptr):
            in_edges = slice(start, stop)
            expected = np.maximum(
                edge_times[topology_of_server.edge_ids[in_edges]],
                node_times[original[topology_of_server.indices[in_edges]]],
            )
            order = np.argsort(expected, kind="stable")
            assert np.array_equal(topology_of_server.by_time[in_edges], order)
            assert np.array_equal(topology_of_server.times[in_edges], expected[order])
            edges_seen += expected.size
        assert edges_seen == 400 or (
            topology == "partitioned" and server is not None and 0 < edges_seen < 400
        )


def test_bad_times_are_refused(tmp_path: Path) -> None:
    table = Table(2)
    set_column(table, "times", np.array([[1.0], [2.0]]), "x")
    assert table.times is not None
    assert table.times.tolist() == [1, 2]
    for bad_times in (
        np.array([1.5]),
        np.array(["a"]),
        np.ones((2, 2), np.int64),
        np.array([np.nan]),
    ):
        with pytest.raises(GraphError, match="x: expected integers"):
            set_column(table, "times", bad_times, "x")
    with pytest.raises(GraphError, match=r"times of node: expected 3, one for each node, given 2"):
        GraphDirectory.from_arrays(
            tmp_path / "graph",
            np.array([[0], [1]]),
            features=np.ones((3, 1)),
            labels=np.zeros(3, np.int64),
            times=np.array([1, 2]),
        )
    with pytest.raises(GraphError, match=r"labels of node: expected 3, one for each node, given 2"):
        GraphDirectory.from_arrays(
            *(tmp_path / "graph", np.array([[0], [1]]), np.ones((3, 1)), [0, 1]),
            options=ImportOptions(largest_component=True),
        )
    with pytest.raises(RequestError, match=r"--split: expected random:TRAIN:VAL.* or fractions in"):
        RandomSplit.parse("time:20:30")
    assert RandomSplit.parse("time:0.5:0.25") == RandomSplit(0.5, 0.25, by_time=True)


def test_a_source_without_times_cannot_be_split_by_them(tables: Path, tmp_path: Path) -> None:
    (tables / "nodes.csv").write_text("id,label\na,0\nb,1\nc,0\nd,1\n")
    with pytest.raises(RequestError, match="--split: expected times of node"):
        import_graph(
            "csv",
            str(tables),
            tmp_path / "graph",
            ImportOptions(split=RandomSplit(0.5, 0.25, by_time=True)),
        )
