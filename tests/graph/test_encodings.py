"""New tables are encoded like an earlier graph, numbers are scaled, and wide columns are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, import_graph
from hopper.graph.layout import label_names_file
from tests.graph.test_texts import Kind, read_lines, write

pytestmark = pytest.mark.filterwarnings("ignore:.*numbers scaled by")

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
