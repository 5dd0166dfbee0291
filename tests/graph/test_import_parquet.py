"""Folders of Parquet tables."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from hopper import GraphDirectory, GraphError
from hopper.graph.importers import ImportOptions, import_graph, import_here
from hopper.graph.importers.table_folder import read_folder
from hopper.graph.layout import names_file
from hopper.graph.schema import Relation

EDGES = Relation("node", "edge", "node")


def write(folder: Path, **tables: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, columns in tables.items():
        parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")
    return folder


def small() -> dict[str, dict[str, Any]]:
    lists = pyarrow.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    return {
        "nodes": {
            "id": ["ann", "bob", "cem"],
            "label": [1, None, 0],
            "age": [30, 40, 50],
            "embedding": lists,
            "split": ["train", None, "test"],
        },
        "edges": {"src": ["cem", "ann"], "dst": ["ann", "bob"], "years": [3, 4]},
    }


def test_one_type(tmp_path: Path) -> None:
    import_graph("parquet", str(write(tmp_path / "tables", **small())), tmp_path / "graph")
    graph = GraphDirectory.open(tmp_path / "graph")
    np.testing.assert_array_equal(graph.features("node"), [[30, 1, 2], [40, 3, 4], [50, 5, 6]])
    np.testing.assert_array_equal(graph.labels("node"), [1, -1, 0])
    np.testing.assert_array_equal(graph.split("train"), [0])
    np.testing.assert_array_equal(graph.edge_features(EDGES)[:, 0], [3, 4])
    topology = graph.topology(EDGES)
    np.testing.assert_array_equal(topology.indptr, [0, 1, 2, 2])
    np.testing.assert_array_equal(topology.indices, [2, 0])
    assert names_file(tmp_path / "graph", "node").read_text().split() == ["ann", "bob", "cem"]


def test_several_types_numbered(tmp_path: Path) -> None:
    fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.arange(6.0)), 3)
    folder = write(
        tmp_path / "tables",
        nodes__author={"id": [0, 1, 2]},
        nodes__paper={"id": [10, 20], "label_0": [1, 0], "label_1": [1, 1], "x": fixed},
        edges__author__writes__paper={"src": np.array([2, 0], np.int32), "dst": [20, 10]},
    )
    import_graph("parquet", str(folder), tmp_path / "graph")
    graph = GraphDirectory.open(tmp_path / "graph")
    assert graph.schema.target == "paper"
    np.testing.assert_array_equal(graph.labels("paper"), [[1, 1], [0, 1]])
    np.testing.assert_array_equal(graph.features("paper"), [[0, 1, 2], [3, 4, 5]])
    topology = graph.topology(Relation("author", "writes", "paper"))
    np.testing.assert_array_equal(topology.indices, [0, 2])
    assert not names_file(tmp_path / "graph", "author").exists()
    assert names_file(tmp_path / "graph", "paper").read_text().split() == ["10", "20"]


def test_decimals_are_numbers_and_missing_booleans_are_filled(tmp_path: Path) -> None:
    prices = [Decimal("1.25"), Decimal("3")]
    lists = pyarrow.array([prices, prices], pyarrow.list_(pyarrow.decimal128(9, 2)))
    nodes = {"id": [0, 1], "value": prices, "price": prices, "pair": lists, "open": [True, None]}
    edges = {"src": [0, 1], "dst": [1, 0], "weight": prices}
    folder = write(tmp_path / "tables", nodes=nodes, edges=edges)
    import_graph("parquet", str(folder), tmp_path / "graph", ImportOptions(missing="zero"))
    graph = GraphDirectory.open(tmp_path / "graph")
    assert graph.features("node").tolist() == [[1.25, 1.25, 3, 1], [3, 1.25, 3, 0]]
    assert graph.labels("node").tolist() == graph.edge_weights(EDGES).tolist() == [1.25, 3]


@pytest.mark.parametrize(
    ("table", "columns", "match"),
    [
        ("nodes", {"id": ["ann", "ann", "cem"]}, "column id: expected distinct ids"),
        ("nodes", {"id": ["ann", None, "cem"]}, "row 1: column id: nothing stands there"),
        ("nodes", {"name": ["ann", "bob", "cem"]}, "column id: expected, but missing"),
        ("nodes", {"label": [0.5, 1.5, 2.5]}, "column label: expected integers or texts"),
        ("nodes", {"value": [1.0, 2.0, 3.0]}, "expected one of label, value"),
        ("nodes", {"town": [b"x", b"y", b"z"]}, "column town: expected numbers, lists of them, or"),
        ("nodes", {"age": [1, None, 3]}, "features of node: row 1, column age: expected a finite"),
        ("edges", {"weight": [1.0, None]}, "row 1: column weight: nothing stands there"),
        ("nodes", {"embedding": [[1.0], [1.0, 2.0], [1.0]]}, "row 1: column embedding: expected 1"),
        ("edges", {"src": ["ann", "dora"]}, "row 1: column src: expected an id of the node table"),
        ("edges", {"dst": [1.5, 2.5]}, "column dst: expected ids of type string"),
    ],
)
def test_what_is_not_understood_is_named(
    table: str, columns: dict[str, Any], match: str, tmp_path: Path
) -> None:
    tables = small()
    if "name" in columns:
        del tables[table]["id"]
    tables[table] |= columns
    folder = write(tmp_path / "tables", **tables)
    with pytest.raises(GraphError, match=match):
        import_here(
            "parquet", str(folder), tmp_path / "graph", ImportOptions(), name=None, root="dataset"
        )
    assert not (tmp_path / "graph").exists()


def test_damaged_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "tables", **small())
    (folder / "nodes.parquet").write_bytes(b"PAR1junkPAR1")
    with pytest.raises(GraphError, match=r"nodes\.parquet: not readable as Parquet"):
        read_folder(folder, "parquet")
