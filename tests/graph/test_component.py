"""Keeping the largest connected component of what is imported."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hopper.errors import GraphError
from hopper.graph import GraphDirectory, Labels, Relation
from hopper.graph.importers import ImportOptions, write_tables
from hopper.graph.importers.component import keep_largest_component
from hopper.graph.importers.tables import ArrayFeatures, GraphTables

KNOWS = Relation("person", "knows", "person")
OWNS = Relation("person", "owns", "robot")


def make_tables(target: str | Relation = "person") -> GraphTables:
    """Persons 1, 3, 4 and robot 1 belong together; 0 and 2 know each other; robot 0 is alone."""
    return GraphTables(
        name="g",
        source="",
        target=target,
        counts={"person": 5, "robot": 2},
        edges={
            KNOWS: (np.array([0, 4, 1], np.int32), np.array([2, 3, 4], np.int32)),
            OWNS: (np.array([3]), np.array([1])),
        },
        features={"person": ArrayFeatures(np.arange(5, dtype=np.float32)[:, None])},
        edge_features={KNOWS: ArrayFeatures(np.array([[7], [8], [9]], np.float32))},
        labels={"person": (Labels("class", 5), np.arange(5))},
        splits={"train": np.array([1, 2])},
        names={"robot": ["r0", "r1"]},
    )


def test_everything_follows_the_nodes_that_stay(tmp_path: Path) -> None:
    out = tmp_path / "g"
    notes = write_tables(make_tables(), out, ImportOptions(largest_component=True))
    assert notes == ["3 nodes outside the largest connected component left out"]
    graph = GraphDirectory.open(out)
    assert {name: kind.count for name, kind in graph.schema.node_types.items()} == {
        "person": 3,
        "robot": 1,
    }
    assert graph.features("person")[:, 0].tolist() == [1.0, 3.0, 4.0]
    assert graph.labels("person").tolist() == [1, 3, 4]
    assert graph.split("train").tolist() == [0]
    knows = graph.topology(KNOWS)
    assert knows.indptr.tolist() == [0, 0, 1, 2]
    assert knows.indices.tolist() == [2, 0]
    # Edge ids are positions in the list of edges that stayed: 4 -> 3 came before 1 -> 4.
    assert knows.edge_ids.tolist() == [0, 1]
    assert graph.edge_features(KNOWS)[:, 0].tolist() == [8.0, 9.0]
    assert json.loads((out / "graph.json").read_text())["relations"][1]["count"] == 1


def test_edges_of_splits_are_renumbered() -> None:
    tables = make_tables(target=KNOWS)
    tables.splits = {"train": np.array([0, 2]), "val": np.array([1])}
    keep_largest_component(tables)
    assert {name: ids.tolist() for name, ids in tables.splits.items()} == {
        "train": [1],
        "val": [0],
    }
    assert tables.names["robot"] == ["r1"]


def test_a_connected_graph_stays_as_it_is() -> None:
    tables = GraphTables("g", "", "n", {"n": 3}, {})
    tables.edges[Relation("n", "to", "n")] = (np.array([0, 2]), np.array([1, 1]))
    keep_largest_component(tables)
    assert tables.counts == {"n": 3}
    assert tables.notes == ["0 nodes outside the largest connected component left out"]


def test_an_edge_to_no_node_is_refused() -> None:
    tables = make_tables()
    tables.edges[OWNS] = (np.array([3]), np.array([2]))
    with pytest.raises(GraphError, match=r"owns.*robot in \[0, 2\), given 2 to 2"):
        keep_largest_component(tables)
