"""Labels and features that are texts, and numbers that are missing: numbered, spread out and filled
in, with what they were called kept beside the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import networkx
import numpy as np
import pandas
import pytest

from hopper.errors import GraphError
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, import_graph
from hopper.graph.layout import label_names_file
from hopper.graph.schema import Relation

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*left out", "ignore:.*classes, in order of text", "ignore:.*filled with"
)

Kind = Literal["csv", "parquet"]
RATES, SELLS = Relation("user", "rates", "item"), Relation("shop", "sells", "item")


def read_lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def write(folder: Path, kind: Kind, tables: dict[str, dict[str, Any]]) -> str:
    folder.mkdir()
    for name, columns in tables.items():
        frame = pandas.DataFrame(columns)
        if kind == "csv":
            frame.to_csv(folder / f"{name}.csv", index=False)
        else:
            frame.to_parquet(folder / f"{name}.parquet", index=False)
    return str(folder)


def make_people() -> dict[str, dict[str, Any]]:
    return {
        "nodes": {
            "id": ["a", "b", "c", "d"],
            "label": ["red", None, "blue", "red"],
            "age": [30.0, None, 50.0, 10.0],
            "town": [None, "Ulm", "Aix", "Ulm"],
        },
        "edges": {"src": ["a", "b"], "dst": ["b", "c"], "how": ["by car", "on foot"]},
    }


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables(kind: Kind, tmp_path: Path) -> None:
    source = write(tmp_path / "tables", kind, make_people())
    with pytest.raises(GraphError, match=r"row 1, column age: expected a finite .* --missing mean"):
        import_graph(kind, source, tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    options = ImportOptions(missing="mean")
    notes = import_graph(kind, source, tmp_path / "graph", options)
    assert "labels of node: 2 classes, in order of text: 0 = blue, 1 = red" in notes
    assert "features of node: 1 missing numbers filled with mean" in notes
    graph, edge = GraphDirectory.open(tmp_path / "graph"), Relation("node", "edge", "node")
    np.testing.assert_array_equal(graph.labels("node"), [1, -1, 0, 1])
    expected = [[30, 0, 0], [30, 0, 1], [50, 1, 0], [10, 0, 1]]
    np.testing.assert_array_equal(graph.features("node"), expected)
    np.testing.assert_array_equal(graph.edge_features(edge), np.eye(2))
    assert read_lines(label_names_file(graph.path, "node")) == ["blue", "red"]
    age, town = graph.schema.node_types["node"].columns
    assert (age.name, age.fill, town.names) == ("age", (30.0,), ["town=Aix", "town=Ulm"])
    assert graph.schema.relations[edge].columns[0].names == ["how=by car", "how=on foot"]
    import_graph(kind, source, tmp_path / "zero", ImportOptions(missing="zero"))
    assert GraphDirectory.open(tmp_path / "zero").features("node")[1, 0] == 0


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_classes_of_several_relations_are_called_the_same(kind: Kind, tmp_path: Path) -> None:
    tables = {
        "nodes__user": {"id": [0, 1]},
        "nodes__item": {"id": [0, 1, 2]},
        "nodes__shop": {"id": [0]},
        "edges__user__rates__item": {
            "src": [0, 1, 1],
            "dst": [0, 1, 2],
            "label": ["good", "poor", None],
            "split": ["train", "test", None],
        },
        "edges__shop__sells__item": {
            "src": [0, 0],
            "dst": [1, 2],
            "label": ["fair", "poor"],
            "split": ["train", "train"],
        },
    }
    import_graph(kind, write(tmp_path / "tables", kind, tables), tmp_path / "graph")
    graph = GraphDirectory.open(tmp_path / "graph")
    assert (graph.schema.target, graph.schema.also) == (SELLS, (RATES,))
    np.testing.assert_array_equal(graph.labels(RATES), [1, 2, -1])
    np.testing.assert_array_equal(graph.labels(SELLS), [0, 2])
    for relation in (RATES, SELLS):
        assert read_lines(label_names_file(graph.path, relation)) == ["fair", "good", "poor"]
    labels = graph.links("train").labels
    assert labels is not None
    assert labels.tolist() == [0, 2, 1]


def test_a_column_of_too_many_texts_is_named(tmp_path: Path) -> None:
    tables = make_people()
    tables["nodes"] = {"id": list(range(1001)), "town": [f"t{i}" for i in range(1001)]}
    tables["edges"] = {"src": [0], "dst": [1]}
    source = write(tmp_path / "csv", "csv", tables)
    with pytest.raises(GraphError, match=r"line 1002: column town: expected a number, or at most"):
        import_graph("csv", source, tmp_path / "graph")
    source = write(tmp_path / "parquet", "parquet", tables)
    with pytest.raises(
        GraphError, match=r"row 1000: column town: expected a number, or at most 1,000"
    ):
        import_graph("parquet", source, tmp_path / "graph")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["0", "--5"], [1, 0]),
        (["-", "3"], [0, 1]),
        (["2147483647", ""], [2147483647, -1]),
    ],
)
def test_what_looks_like_a_number(labels: list[str], expected: list[int], tmp_path: Path) -> None:
    tables = {"nodes": {"id": [0, 1], "label": labels}, "edges": {"src": [0], "dst": [1]}}
    import_graph("csv", write(tmp_path / "tables", "csv", tables), tmp_path / "graph")
    assert GraphDirectory.open(tmp_path / "graph").labels("node").tolist() == expected


def test_too_many_classes_are_refused(tmp_path: Path) -> None:
    tables = {
        "nodes": {"id": [0, 1], "label": ["1", "2147483648"]},
        "edges": {"src": [0], "dst": [1]},
    }
    source = write(tmp_path / "tables", "csv", tables)
    with pytest.raises(GraphError, match=r"line 3: column label: expected a class \(an integer"):
        import_graph("csv", source, tmp_path / "graph")


def test_texts_from_python(tmp_path: Path) -> None:
    for number, labels in enumerate(
        (
            ["x", "", "w", None],
            np.array(["x", "", "w", ""]),
            pandas.Series(["x", None, "w", None]),
        )
    ):
        out = tmp_path / str(number)
        graph = GraphDirectory.from_arrays(out, [[0, 1], [1, 0]], labels=labels)
        np.testing.assert_array_equal(graph.labels("node"), [1, -1, 0, -1])
        assert read_lines(label_names_file(out, "node")) == ["w", "x"]
    digraph = networkx.DiGraph([(0, 1)])
    networkx.set_node_attributes(digraph, {0: "x", 1: "w"}, "label")
    graph = GraphDirectory.from_networkx(digraph, tmp_path / "drawn")
    np.testing.assert_array_equal(graph.labels("node"), [1, 0])
    assert read_lines(label_names_file(graph.path, "node")) == ["w", "x"]
    filled = GraphDirectory.from_arrays(
        tmp_path / "filled",
        [[0, 1], [1, 0]],
        features=np.array([[1.0, np.nan], [3.0, 4.0]]),
        options=ImportOptions(missing="mean"),
    )
    np.testing.assert_array_equal(filled.features("node"), [[1, 4], [3, 4]])
