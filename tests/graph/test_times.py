"""Times of nodes and edges: read from tables and arrays, kept, and split by."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory, Relation
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph
from hopper.graph.importers.arrays import set_column
from hopper.graph.importers.tables import Table
from hopper.partition import PartitionedGraph, partition_graph

EDGE = Relation("node", "edge", "node")
BY_TIME = RandomSplit(0.5, 0.25, by_time=True)
DATES = ["2026-05-31", "2026-05-31T12:00:00+02:00"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_times_are_read_from_tables(kind: str, tmp_path: Path) -> None:
    """Dates become seconds since 1970, in UTC unless they name a zone, and are no features."""
    midnight = int(np.datetime64("2026-05-31", "s").astype(np.int64))
    times: Any = [*DATES, "-5", "7"]
    if kind == "parquet":
        times = pandas.to_datetime(DATES * 2, format="ISO8601", utc=True).tz_localize(None)
    nodes = {"id": list("abcd"), "label": [0, 1, 0, 1], "time": times, "size": range(4)}
    edges = {"src": list("abd"), "dst": list("bcc"), "time": [30, 10, 20], "sum": [1.5, 2.5, 3.5]}
    (tmp_path / "tables").mkdir()
    for name, table in (("nodes", nodes), ("edges", edges)):
        frame, file = pandas.DataFrame(table), tmp_path / "tables" / f"{name}.{kind}"
        frame.to_csv(file, index=False) if kind == "csv" else frame.to_parquet(file, index=False)
    options = ImportOptions(add_reverse="all", split=BY_TIME)
    notes = import_graph(kind, str(tmp_path / "tables"), tmp_path / "graph", options)
    assert "split by time: 2 train, 1 val, 1 test" in notes or kind == "parquet"
    graph, reverse = GraphDirectory.open(tmp_path / "graph"), Relation("node", "rev_edge", "node")
    later = [-5, 7] if kind == "csv" else [midnight, midnight + 10 * 3600]
    assert graph.times("node").tolist() == [midnight, midnight + 10 * 3600, *later]
    kinds = graph.schema.node_types["node"], graph.schema.relations[EDGE]
    assert [[one.name for one in of.columns] for of in kinds] == [["size"], ["sum"]]
    assert graph.times(reverse).tolist() == [30, 10, 20]
    assert graph.schema.timed == ["node", EDGE, reverse]
    assert graph.split("train").tolist() == ([2, 3] if kind == "csv" else [0, 2])
    if kind == "csv":
        for text, error, match in (
            ("id,label,time\na,0,yesterday\n", GraphError, "line 2: column time: expected an int"),
            ("id,label\na,0\nb,1\nc,0\nd,1\n", RequestError, "--split: expected times of node"),
        ):
            (tmp_path / "tables/nodes.csv").write_text(text)
            with pytest.raises(error, match=match):
                import_graph(kind, str(tmp_path / "tables"), tmp_path / "refused", options)


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
    for bad_times in ([1.5], ["a"], np.ones((2, 2), np.int64), [np.nan]):
        with pytest.raises(GraphError, match="x: expected integers"):
            set_column(table, "times", np.array(bad_times), "x")
    for columns, wrong in (
        ({"labels": [0, 0, 0], "times": [1, 2]}, "times"),
        # Before nodes are left out.
        ({"labels": [0, 1], "options": ImportOptions(largest_component=True)}, "labels"),
    ):
        arguments: dict[str, Any] = {"features": np.ones((3, 1)), **columns}
        with pytest.raises(GraphError, match=f"{wrong} of node: expected 3, one for each node, gi"):
            GraphDirectory.from_arrays(tmp_path / "graph", np.array([[0], [1]]), **arguments)
    with pytest.raises(RequestError, match=r"--split: expected random:TRAIN:VAL.* or fractions in"):
        RandomSplit.parse("time:20:30")
    assert RandomSplit.parse("time:0.5:0.25") == BY_TIME
