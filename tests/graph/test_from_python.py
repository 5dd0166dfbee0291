"""Graph directories from NetworkX graphs, GraphML files and arrays."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from hopper import GraphDirectory, GraphError
from hopper.graph.importers import import_graph
from hopper.graph.importers.networkx import tables_from_networkx
from hopper.graph.layout import names_file
from hopper.graph.schema import Relation

EDGES = Relation("node", "edge", "node")


def people() -> Any:
    graph = networkx.Graph()
    graph.add_node("ann", age=30, height=1.7, label="red", split="train", town="Ulm")
    graph.add_node("bob", age=40, height=1.8, label="blue", split="test", town="Bonn")
    graph.add_node("cem", age=50, height=1.9)
    graph.add_edge("ann", "bob", years=3)
    graph.add_edge("bob", "bob", years=4)
    return graph


def test_networkx(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        graph = GraphDirectory.from_networkx(people(), tmp_path / "graph")
    assert {str(warning.message) for warning in caught_warnings} == {
        "graph: node attributes left out: town (no number, or not there everywhere)",
        "graph: node label: 2 classes, in order of text: 0 = blue, 1 = red",
    }
    np.testing.assert_allclose(graph.features("node"), [[30, 1.7], [40, 1.8], [50, 1.9]])
    np.testing.assert_array_equal(graph.labels("node"), [1, 0, -1])
    np.testing.assert_array_equal(graph.split("test"), [1])
    # Both ways, but a loop once.
    topology = graph.topology(EDGES)
    np.testing.assert_array_equal(topology.indptr, [0, 1, 3, 3])
    np.testing.assert_array_equal(graph.edge_features(EDGES)[:, 0], [3, 4, 3])
    assert names_file(tmp_path / "graph", "node").read_text().split() == ["ann", "bob", "cem"]


def test_lists_of_features_and_directions(tmp_path: Path) -> None:
    graph = networkx.DiGraph()
    graph.add_nodes_from([(0, {"features": [1, 2], "label": 4}), (1, {"features": [3, 4]})])
    graph.add_edge(0, 1)
    directory = GraphDirectory.from_networkx(graph, tmp_path / "graph")
    np.testing.assert_array_equal(directory.features("node"), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(directory.labels("node"), [4, -1])
    assert directory.schema.relations[EDGES].count == 1
    assert not names_file(tmp_path / "graph", "node").exists()
    graph.nodes[1]["features"] = [1]
    with pytest.raises(GraphError, match="node 1: features: expected 2 numbers"):
        tables_from_networkx(graph, "graph", "graph")
    graph.nodes[1]["label"] = (1, 2)
    graph.nodes[1]["features"] = [1, 2]
    with pytest.raises(GraphError, match="label: expected integers, numbers or texts"):
        tables_from_networkx(graph, "graph", "graph")


def test_graphml(tmp_path: Path) -> None:
    networkx.write_graphml(people(), tmp_path / "people.graphml")
    import_graph("graphml", str(tmp_path / "people.graphml"), tmp_path / "graph")
    graph = GraphDirectory.open(tmp_path / "graph")
    np.testing.assert_array_equal(graph.labels("node"), [1, 0, -1])
    (tmp_path / "junk.graphml").write_text("<graph")
    with pytest.raises(GraphError, match="not readable as GraphML"):
        import_graph("graphml", str(tmp_path / "junk.graphml"), tmp_path / "junk")


def test_arrays_of_several_types(tmp_path: Path) -> None:
    graph = GraphDirectory.from_arrays(
        tmp_path / "graph",
        {("author", "writes", "paper"): [[0, 1], [1, 1]]},
        {"paper": np.ones((2, 3))},
        {"paper": np.array([0.5, 1.5])},
        counts={"author": 7},
    )
    assert graph.schema.target == "paper"
    assert graph.schema.labels["paper"].kind == "float"
    assert graph.schema.node_types["author"].count == 7


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"edges": [[0.5], [1.0]]}, r"edges of node/edge/node: expected integers of shape \[2"),
        ({"edges": {("a", "b"): [[0], [0]]}}, r"expected \(source, relation, destination\)"),
        (
            {"edges": {("a", "b", "c"): [[0], [0]]}},
            "target: expected splits or labels",
        ),
        ({"edges": [[0], [1]], "features": [[[1]], [[2]]]}, r"node: expected shape \[n, d\]"),
        ({"edges": [[0], [5]], "features": [[1], [2]]}, r"dst of edge 0: expected an id of node"),
        ({"edges": [[0], [1]], "splits": {"train": [7]}}, r"split train: expected ids of nodes"),
        ({"edges": [[0], [1]], "labels": [1j, 2j]}, "expected integer or float labels"),
    ],
)
def test_arrays_that_do_not_fit_are_named(arguments: Any, match: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=match):
        GraphDirectory.from_arrays(tmp_path / "graph", **arguments)
    assert not (tmp_path / "graph").exists()
