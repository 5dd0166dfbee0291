"""Texts become classes and categories, missing numbers are filled, numbers are scaled, and new
tables are encoded like an earlier graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import networkx
import numpy as np
import pandas
import pytest

from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, import_graph
from hopper.graph.layout import label_names_file
from hopper.graph.schema import Relation

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*left out",
    "ignore:.*classes, in order of text",
    "ignore:.*filled with",
    "ignore:.*numbers scaled by",
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
    places: dict[Kind, str] = {"csv": "line 1002", "parquet": "row 1000"}
    for kind, place in places.items():
        source = write(tmp_path / kind, kind, tables)
        with pytest.raises(GraphError, match=rf"{place}: column town: .* at most 1,000 different"):
            import_graph(kind, source, tmp_path / "graph")


def test_what_looks_like_a_number(tmp_path: Path) -> None:
    def read(labels: list[str]) -> list[int]:
        nodes: dict[str, Any] = {"id": [0, 1], "label": labels}
        tables = {"nodes": nodes, "edges": {"src": [0], "dst": [1]}}
        number = len(list(tmp_path.iterdir()))
        source = write(tmp_path / f"tables-{number}", "csv", tables)
        import_graph("csv", source, tmp_path / f"graph-{number}")
        return GraphDirectory.open(tmp_path / f"graph-{number}").labels("node").tolist()

    assert read(["0", "--5"]) == [1, 0]
    assert read(["-", "3"]) == [0, 1]
    assert read(["2147483647", ""]) == [2147483647, -1]
    with pytest.raises(GraphError, match=r"line 3: column label: expected a class \(an integer"):
        read(["1", "2147483648"])


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


INCOMES = [10.0, 30.0, 50_000.0, 20.0]
OLD: dict[str, dict[str, Any]] = {
    "nodes": {
        "id": ["a", "b", "c", "d"],
        "tier": ["bronze", "gold", "silver", None],
        "income": INCOMES,
        "label": ["x", "y", "x", "z"],
        "split": ["train", "train", "test", "train"],
    },
    "edges": {"src": ["a", "b"], "dst": ["b", "c"]},
}
NEW: dict[str, dict[str, Any]] = {
    "nodes": {
        "id": ["e", "f", "g"],
        "income": [20.0, None, 30.0],
        "tier": ["silver", "gold", "gold"],
        "label": [None, "z", "y"],
    },
    "edges": {"src": ["e"], "dst": ["g"]},
}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_encoded_like_an_earlier_graph(kind: Kind, tmp_path: Path) -> None:
    old, new = write(tmp_path / "old", kind, OLD), write(tmp_path / "new", kind, NEW)
    options = ImportOptions(scale="standard", missing="mean")
    notes = import_graph(kind, old, tmp_path / "graph", options)
    assert "features of node: numbers scaled by standard, fitted on the 3 training rows" in notes
    mean, deviation = 20.0, float(np.std([10, 30, 20]))
    features = GraphDirectory.open(tmp_path / "graph").features("node")
    np.testing.assert_allclose(features[:, 3], (np.array(INCOMES) - mean) / deviation, rtol=1e-6)
    like = ImportOptions(encode_like=str(tmp_path / "graph"))
    import_graph(kind, new, tmp_path / "like", like)
    graph = GraphDirectory.open(tmp_path / "like")
    filled = (np.array([20, np.mean(INCOMES), 30]) - mean) / deviation
    expected = np.column_stack(([[0, 0, 1], [0, 1, 0], [0, 1, 0]], filled))
    np.testing.assert_allclose(graph.features("node"), expected, rtol=1e-6)
    assert (graph.schema.target, graph.labels("node").tolist()) == ("node", [-1, 2, 1])
    assert read_lines(label_names_file(graph.path, "node")) == ["x", "y", "z"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_what_the_earlier_graph_lacks_is_refused_or_counted(kind: Kind, tmp_path: Path) -> None:
    import_graph(kind, write(tmp_path / "old", kind, OLD), tmp_path / "graph")
    nodes = NEW["nodes"] | {"income": [1, 2, 3], "tier": ["tin", "gold", "tin"]}
    known = write(tmp_path / "known", kind, {**NEW, "nodes": nodes})
    nodes["label"] = ["x", "w", "y"]
    new = write(tmp_path / "new", kind, {**NEW, "nodes": nodes})
    like = ImportOptions(encode_like=str(tmp_path / "graph"))
    with pytest.raises(GraphError, match=r"column 'tier': expected one of bronze, .* tin in 2 row"):
        import_graph(kind, known, tmp_path / "refused", like)
    with pytest.raises(GraphError, match=r"labels: expected one of x, y, z, .* given w in 1 rows"):
        import_graph(kind, new, tmp_path / "refused", like)
    like = ImportOptions(encode_like=str(tmp_path / "graph"), unknown_category="zeros")
    notes = import_graph(kind, new, tmp_path / "like", like)
    assert "node: column 'tier': 2 rows of unknown tin: taken as none" in notes
    assert "node: labels: 1 rows of unknown w: taken as none" in notes
    graph = GraphDirectory.open(tmp_path / "like")
    np.testing.assert_array_equal(graph.features("node")[:, :3], [[0, 0, 0], [0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(graph.labels("node"), [0, -1, 1])
    for name, column, match in (
        ("size", [1, 2, 3], "expected the columns of features tier, income"),
        ("income", ["a", "b", "c"], "income: expected"),
    ):
        other = write(tmp_path / name, kind, {**NEW, "nodes": nodes | {name: column}})
        with pytest.raises(GraphError, match=match):
            import_graph(kind, other, tmp_path / "refused", like)
    with pytest.raises(RequestError, match="--scale: expected it without --encode-like"):
        ImportOptions(encode_like="graph", scale="log")
    with pytest.raises(RequestError, match="--unknown-category: expected --encode-like beside"):
        ImportOptions(unknown_category="zeros")


def test_columns_far_from_1_are_named_in_one_line(tmp_path: Path) -> None:
    wide = import_graph("csv", write(tmp_path / "old", "csv", OLD), tmp_path / "graph")[-1]
    assert "hurt training: node: column 'income' (10 to 50,000); import again with --scale" in wide
    arrays = np.random.default_rng(0).normal(size=(40, 3)) * [1, 300, 1]
    edges = np.zeros((2, 1), np.int64)
    with pytest.warns(UserWarning, match=r"hurt training: node: column 1 \(-\d+"):
        GraphDirectory.from_arrays(tmp_path / "matrix", edges, arrays, target="node")
    (columns,) = GraphDirectory.open(tmp_path / "matrix").schema.node_types["node"].columns
    assert (columns.name, [found.at for found in columns.ranges]) == ("", [1])
    scaled = [
        GraphDirectory.from_arrays(
            *(tmp_path / scale, edges, arrays), target="node", options=ImportOptions(scale=scale)
        ).features("node")
        for scale in ("minmax", "log")
    ]
    np.testing.assert_allclose((scaled[0].min(0), scaled[0].max(0)), [[0] * 3, [1] * 3], atol=1e-6)
    expected = np.sign(arrays) * np.log1p(np.abs(arrays))
    np.testing.assert_allclose(scaled[1], expected, rtol=1e-5)


def test_scales_of_lists_are_fitted_on_later_rows_too(tmp_path: Path) -> None:
    """Numbers in lists are scaled each by itself, over batches of any size."""
    rows = np.random.default_rng(1).normal(50, 9, (70_000, 2)).astype(np.float32)
    (tmp_path / "tables").mkdir()
    nodes = {"id": np.arange(70_000), "place": list(rows), "tier": ["a", "b"] * 35_000}
    pandas.DataFrame(nodes).to_parquet(tmp_path / "tables" / "nodes.parquet")
    options = ImportOptions(scale="standard")
    import_graph("parquet", str(tmp_path / "tables"), tmp_path / "graph", options)
    features = GraphDirectory.open(tmp_path / "graph").features("node")
    expected = (rows - rows.mean(0, np.float64)) / rows.std(0, np.float64)
    np.testing.assert_allclose(features[:, :2], expected, atol=1e-5)
    np.testing.assert_array_equal(features[:2, 2:], np.eye(2))
