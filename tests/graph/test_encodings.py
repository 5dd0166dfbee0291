"""Texts become classes and categories, missing numbers are filled, numbers are scaled, and new
tables are encoded like an earlier graph."""

from collections.abc import Callable
from typing import Any

import networkx
import numpy as np
import pandas
import pytest

from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory, Relation
from hopper.graph.importers import ImportOptions, import_graph
from hopper.graph.layout import label_names_file
from tests.graph.conftest import write_frames

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*left out",
    "ignore:.*classes, in order of text",
    "ignore:.*filled with",
    "ignore:.*numbers scaled by",
)

RATES, SELLS = Relation("user", "rates", "item"), Relation("shop", "sells", "item")
EDGE = Relation("node", "edge", "node")
Tables = dict[str, dict[str, Any]]
Import = Callable[..., tuple[GraphDirectory, list[str]]]


@pytest.fixture(params=["csv", "parquet"])
def import_tables(request, tmp_path) -> Import:
    """A function that imports tables, under both kinds; it returns the graph and notes."""
    kind: str = request.param

    def write_and_import(tables: Tables, **options: Any) -> tuple[GraphDirectory, list[str]]:
        number = len(list(tmp_path.iterdir()))
        folder = write_frames(tmp_path / f"tables-{number}", kind, tables)
        out = tmp_path / f"graph-{number}"
        try:
            notes = import_graph(kind, folder, out, ImportOptions(**options))
        finally:
            assert not list(tmp_path.glob(".*"))
        return GraphDirectory.open(out), notes

    return write_and_import


def class_names(graph: GraphDirectory, owner: str | Relation) -> list[str]:
    return label_names_file(graph.path, owner).read_text(encoding="utf-8").splitlines()


PEOPLE: Tables = {
    "nodes": {
        "id": ["a", "b", "c", "d"],
        "label": ["red", None, "blue", "red"],
        "age": [30.0, None, 50.0, 10.0],
        "town": [None, "Ulm", "Aix", "Ulm"],
    },
    "edges": {"src": ["a", "b"], "dst": ["b", "c"], "how": ["by car", "on foot"]},
}


def test_tables(import_tables):
    with pytest.raises(GraphError, match=r"row 1, column age: expected a finite .* --missing mean"):
        import_tables(PEOPLE)
    graph, notes = import_tables(PEOPLE, missing="mean")
    assert "labels of node: 2 classes, in order of text: 0 = blue, 1 = red" in notes
    assert "features of node: 1 missing numbers filled with mean" in notes
    np.testing.assert_array_equal(graph.labels("node"), [1, -1, 0, 1])
    expected = [[30, 0, 0], [30, 0, 1], [50, 1, 0], [10, 0, 1]]
    np.testing.assert_array_equal(graph.features("node"), expected)
    np.testing.assert_array_equal(graph.features(EDGE), np.eye(2))
    assert class_names(graph, "node") == ["blue", "red"]
    age, town = graph.schema.node_types["node"].columns
    assert (age.name, age.fill, town.names) == ("age", (30.0,), ["town=Aix", "town=Ulm"])
    assert graph.schema.relations[EDGE].columns[0].names == ["how=by car", "how=on foot"]
    assert import_tables(PEOPLE, missing="zero")[0].features("node")[1, 0] == 0
    nodes = {"id": list(range(1001)), "town": [f"t{i}" for i in range(1001)]}
    with pytest.raises(
        GraphError, match=r"(line 1002|row 1000): column town: .* at most 1,000 different"
    ):
        import_tables({"nodes": nodes, "edges": {"src": [0], "dst": [1]}})


def test_classes_of_several_relations_are_called_the_same(import_tables):
    rates = {"src": [0, 1, 1], "dst": [0, 1, 2], "label": ["good", "poor", None]}
    sells = {"src": [0, 0], "dst": [1, 2], "label": ["fair", "poor"], "split": ["train", "train"]}
    graph, _ = import_tables({
        "nodes__user": {"id": [0, 1]},
        "nodes__item": {"id": [0, 1, 2]},
        "nodes__shop": {"id": [0]},
        "edges__user__rates__item": {**rates, "split": ["train", "test", None]},
        "edges__shop__sells__item": sells,
    })  # fmt: skip
    assert (graph.schema.target, graph.schema.also) == (SELLS, (RATES,))
    np.testing.assert_array_equal(graph.labels(RATES), [1, 2, -1])
    np.testing.assert_array_equal(graph.labels(SELLS), [0, 2])
    for relation in (RATES, SELLS):
        assert class_names(graph, relation) == ["fair", "good", "poor"]
    labels = graph.links("train").labels
    assert labels is not None
    assert labels.tolist() == [0, 2, 1]


@pytest.mark.parametrize("import_tables", ["csv"], indirect=True)
def test_what_looks_like_a_number(import_tables):
    def read(*labels: str) -> list[int]:
        nodes = {"id": range(len(labels)), "label": labels}
        graph, _ = import_tables({"nodes": nodes, "edges": {"src": [0], "dst": [1]}})
        return graph.labels("node").tolist()

    assert read("0", "--5") == [1, 0]
    assert read("-", "3") == [0, 1]
    assert read("2147483647", "") == [2147483647, -1]
    with pytest.raises(GraphError, match=r"line 3: column label: expected a class \(an integer"):
        read("1", "2147483648")


def test_texts_from_python(tmp_path):
    edges = [[0, 1], [1, 0]]
    texts = (
        ["x", "", "w", None],
        np.array(["x", "", "w", ""]),
        pandas.Series(["x", None, "w", None]),
    )
    for number, labels in enumerate(texts):
        graph = GraphDirectory.from_arrays(tmp_path / str(number), edges, labels=labels)
        np.testing.assert_array_equal(graph.labels("node"), [1, -1, 0, -1])
        assert class_names(graph, "node") == ["w", "x"]
    digraph = networkx.DiGraph([(0, 1)])
    networkx.set_node_attributes(digraph, {0: "x", 1: "w"}, "label")
    graph = GraphDirectory.from_networkx(digraph, tmp_path / "drawn")
    assert (graph.labels("node").tolist(), class_names(graph, "node")) == ([1, 0], ["w", "x"])
    rows, mean = np.array([[1.0, np.nan], [3.0, 4.0]]), ImportOptions(missing="mean")
    graph = GraphDirectory.from_arrays(tmp_path / "filled", edges, rows, options=mean)
    np.testing.assert_array_equal(graph.features("node"), [[1, 4], [3, 4]])


INCOMES = [10.0, 30.0, 50_000.0, 20.0]
OLD: Tables = {
    "nodes": {
        "id": ["a", "b", "c", "d"],
        "tier": ["bronze", "gold", "silver", None],
        "income": INCOMES,
        "label": ["x", "y", "x", "z"],
        "split": ["train", "train", "test", "train"],
    },
    "edges": {"src": ["a", "b"], "dst": ["b", "c"]},
}
NEW: Tables = {
    "nodes": {
        "id": ["e", "f", "g"],
        "income": [20.0, None, 30.0],
        "tier": ["silver", "gold", "gold"],
        "label": [None, "z", "y"],
    },
    "edges": {"src": ["e"], "dst": ["g"]},
}


def test_encoded_like_an_earlier_graph(import_tables):
    old, notes = import_tables(OLD, scale="standard", missing="mean")
    assert "features of node: numbers scaled by standard, fitted on the 3 training rows" in notes
    mean, deviation = 20.0, float(np.std([10, 30, 20]))
    scaled = (np.array(INCOMES) - mean) / deviation
    np.testing.assert_allclose(old.features("node")[:, 3], scaled, rtol=1e-6)
    graph, _ = import_tables(NEW, encode_like=str(old.path))
    filled = (np.array([20, np.mean(INCOMES), 30]) - mean) / deviation
    expected = np.column_stack(([[0, 0, 1], [0, 1, 0], [0, 1, 0]], filled))
    np.testing.assert_allclose(graph.features("node"), expected, rtol=1e-6)
    assert (graph.schema.target, graph.labels("node").tolist()) == ("node", [-1, 2, 1])
    assert class_names(graph, "node") == ["x", "y", "z"]


def test_what_the_earlier_graph_lacks_is_refused_or_counted(import_tables):
    old, _ = import_tables(OLD)

    def import_new(unknown: str = "refuse", **columns: Any) -> tuple[GraphDirectory, list[str]]:
        nodes = NEW["nodes"] | {"income": [1, 2, 3], "tier": ["tin", "gold", "tin"], **columns}
        options = {"encode_like": str(old.path), "unknown_category": unknown}
        return import_tables(NEW | {"nodes": nodes}, **options)

    for columns, match in (
        ({}, r"column 'tier': expected one of bronze, .* tin in 2 rows"),
        ({"label": ["x", "w", "y"]}, r"labels: expected one of x, y, z, .* given w in 1 rows"),
        ({"size": [1, 2, 3]}, "expected the columns of features tier, income"),
        ({"income": ["a", "b", "c"]}, "income: expected"),
    ):
        with pytest.raises(GraphError, match=match):
            import_new(**columns)
    graph, notes = import_new("zeros", label=["x", "w", "y"])
    assert "node: column 'tier': 2 rows of unknown tin: taken as none" in notes
    assert "node: labels: 1 rows of unknown w: taken as none" in notes
    np.testing.assert_array_equal(graph.features("node")[:, :3], [[0, 0, 0], [0, 1, 0], [0, 0, 0]])
    np.testing.assert_array_equal(graph.labels("node"), [0, -1, 1])
    with pytest.raises(RequestError, match="--scale: expected it without --encode-like"):
        ImportOptions(encode_like="graph", scale="log")
    with pytest.raises(RequestError, match="--unknown-category: expected --encode-like beside"):
        ImportOptions(unknown_category="zeros")


def test_columns_far_from_1_are_named_in_one_line(import_tables, tmp_path):
    wide = import_tables(OLD)[1][-1]
    assert "hurt training: node: column 'income' (10 to 50,000); import again with --scale" in wide
    arrays = np.random.default_rng(0).normal(size=(40, 3)) * [1, 300, 1]
    edges = np.zeros((2, 1), np.int64)
    with pytest.warns(UserWarning, match=r"hurt training: node: column 1 \(-\d+"):
        graph = GraphDirectory.from_arrays(tmp_path / "matrix", edges, arrays, target="node")
    (columns,) = graph.schema.node_types["node"].columns
    assert (columns.name, [found.at for found in columns.ranges]) == ("", [1])
    scaled = [
        GraphDirectory.from_arrays(
            tmp_path / scale, edges, arrays, target="node", options=ImportOptions(scale=scale)
        ).features("node")
        for scale in ("minmax", "log")
    ]
    np.testing.assert_allclose((scaled[0].min(0), scaled[0].max(0)), [[0] * 3, [1] * 3], atol=1e-6)
    expected = np.sign(arrays) * np.log1p(np.abs(arrays))
    np.testing.assert_allclose(scaled[1], expected, rtol=1e-5)


@pytest.mark.parametrize("import_tables", ["parquet"], indirect=True)
def test_scales_of_lists_are_fitted_on_later_rows_too(import_tables):
    """Numbers in lists are scaled each by itself, over batches of any size."""
    rows = np.random.default_rng(1).normal(50, 9, (70_000, 2)).astype(np.float32)
    nodes = {"id": np.arange(70_000), "place": list(rows), "tier": ["a", "b"] * 35_000}
    graph, _ = import_tables({"nodes": nodes}, scale="standard")
    features = graph.features("node")
    expected = (rows - rows.mean(0, np.float64)) / rows.std(0, np.float64)
    np.testing.assert_allclose(features[:, :2], expected, atol=1e-5)
    np.testing.assert_array_equal(features[:2, 2:], np.eye(2))


@pytest.mark.parametrize(
    ("before", "now", "refusal"),
    [
        ({"label": [0, 2, 1]}, {"label": [1, 0, 1]}, ""),
        ({"label": [0, 1, 1]}, {"label": [1, 0, 2]}, "class of width 2, .* given class of width 3"),
        ({"label": ["x", "y", "y"]}, {"value": [1.5, 2, 3]}, "class of width 2, .* given float"),
        ({"label": [0, 1, 2]}, {"label": ["x", "y", "y"]},
         "class of width 3, .* given names of classes"),
        ({"label_0": [0, 1, 1], "label_1": [1, 0, 1]}, {"label_0": [0, 1, 1]},
         "multi_hot of width 2, .* given multi_hot of width 1"),
    ],
)  # fmt: skip
def test_labels_have_the_form_of_the_earlier_graph(before, now, refusal, import_tables):
    edges = {"src": [0], "dst": [1]}
    old, _ = import_tables({"nodes": {"id": [0, 1, 2]} | before, "edges": edges})
    new = {"nodes": {"id": [0, 1, 2]} | now, "edges": edges}
    if refusal:
        with pytest.raises(GraphError, match=f"labels of node: expected {refusal}"):
            import_tables(new, encode_like=str(old.path))
        return
    graph, _ = import_tables(new, encode_like=str(old.path))
    assert graph.schema.labels["node"] == old.schema.labels["node"]
    np.testing.assert_array_equal(graph.labels("node"), now["label"])
