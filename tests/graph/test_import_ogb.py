"""What the ogb library loads, as hand-made dictionaries; the library itself is not needed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory, Labels, Relation
from hopper.graph.importers import GraphTables, ImportOptions, write_tables
from hopper.graph.importers.ogb import load_arrays_only, read_ogb, tables_from_ogb

ARXIV: dict[str, Any] = {
    "edge_index": np.array([[0, 2], [1, 1]]),
    "edge_feat": None,
    "node_feat": np.array([[1, 2], [3, 4], [5, 6]], np.float32),
    "node_year": np.zeros((3, 1)),
    "num_nodes": 3,
}
ARXIV_SPLITS = {"train": np.array([0]), "valid": np.array([2]), "test": np.array([1])}
MAG: dict[str, Any] = {
    "edge_index_dict": {
        ("author", "affiliated with", "institution"): np.array([[0, 1], [0, 0]]),
        ("paper", "cites", "paper"): np.array([[2], [0]]),
    },
    "edge_feat_dict": {("paper", "cites", "paper"): np.array([[0.5]], np.float32)},
    "node_feat_dict": {"paper": np.ones((3, 4), np.float16)},
    "num_nodes_dict": {"author": 2, "institution": 1, "paper": 3},
    "edge_reltype": {},
}


def test_heterogeneous(tmp_path: Path) -> None:
    labels = {"paper": np.array([[1], [0], [1]])}
    splits = {name: {"paper": ids} for name, ids in ARXIV_SPLITS.items()}
    tables = tables_from_ogb("ogbn-mag", MAG, labels, splits)
    write_tables(tables, tmp_path / "out", ImportOptions())
    graph = GraphDirectory.open(tmp_path / "out")
    assert graph.schema.target == "paper"
    affiliated = Relation("author", "affiliated_with", "institution")
    assert graph.topology(affiliated).indices.tolist() == [0, 1]
    cites = Relation("paper", "cites", "paper")
    assert graph.edge_features(cites).tolist() == [[0.5]]
    assert graph.features("paper").dtype == np.float16
    assert graph.schema.node_types["author"].feature_dim is None
    assert graph.split("val").tolist() == [2]


def labels_of(tables: GraphTables) -> tuple[Labels, Any]:
    labels = tables.nodes["node"].labels
    assert labels is not None
    return labels


def test_labels_of_other_kinds() -> None:
    several = tables_from_ogb("ogbn-proteins", ARXIV, np.eye(3, dtype=np.int64), ARXIV_SPLITS)
    assert labels_of(several)[0] == Labels("multi_hot", 3)
    assert labels_of(several)[1].dtype == np.uint8
    hidden = np.array([[1.0], [np.nan], [0.0]], np.float32)
    papers = tables_from_ogb("ogbn-papers100M", ARXIV, hidden, ARXIV_SPLITS)
    assert labels_of(papers)[0] == Labels("class", 2)
    assert labels_of(papers)[1].tolist() == [1, -1, 0]
    prices = tables_from_ogb("x", ARXIV, np.array([[0.5], [1], [2]]), ARXIV_SPLITS)
    assert labels_of(prices)[0] == Labels("float", 1)


def test_damaged_dictionaries() -> None:
    with pytest.raises(GraphError, match="ogb dataset x: num_nodes: missing entry"):
        tables_from_ogb("x", {"edge_index": np.zeros((2, 0), int)}, np.zeros(0), {})
    bad = ARXIV | {"edge_index": np.zeros((3, 2), int)}
    with pytest.raises(GraphError, match=r"expected integers of shape \[2, edges\], .* \[3, 2\]"):
        tables_from_ogb("x", bad, np.zeros((3, 1), int), ARXIV_SPLITS)
    with pytest.raises(GraphError, match=r"splits of one node type, given \['author', 'paper'\]"):
        tables_from_ogb("x", MAG, {}, {"train": {"paper": [0], "author": [0]}})


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", None)
    with pytest.raises(RequestError, match="pip install ogb"):
        read_ogb("ogbn-arxiv", tmp_path)


class FakeDataset:
    """Has the interface of the library's dataset."""

    def __init__(self, name: str, root: str) -> None:
        if name != "ogbn-arxiv":
            raise ValueError(f"Invalid dataset name {name}")

    def __getitem__(self, index: int) -> tuple[dict[str, Any], np.ndarray]:
        assert index == 0
        return ARXIV, np.array([[0], [1], [0]])

    def get_idx_split(self) -> dict[str, np.ndarray]:
        return ARXIV_SPLITS


def test_through_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("ogb.nodeproppred")
    module.NodePropPredDataset = FakeDataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ogb", ModuleType("ogb"))
    monkeypatch.setitem(sys.modules, "ogb.nodeproppred", module)
    assert read_ogb("ogbn-arxiv", tmp_path).nodes["node"].count == 3
    with pytest.raises(
        RequestError, match=r"could not load 'ogbn-x' into .*: Invalid dataset name"
    ):
        read_ogb("ogbn-x", tmp_path)


def test_files_of_the_library_may_contain_only_arrays(tmp_path: Path) -> None:
    """The library writes pickles of arrays, which torch by itself refuses to read."""
    file = tmp_path / "data_processed"

    def load_arrays(file: Path) -> Any:
        with load_arrays_only():
            return torch.load(file, weights_only=True)

    graph = {"edge_index": np.arange(6).reshape(2, 3), "num_nodes": 4, "node_feat": np.ones((4, 2))}
    torch.save({"graph": graph, "labels": np.array([[0.0], [np.nan]])}, file, pickle_protocol=4)
    arrays = load_arrays(file)
    np.testing.assert_array_equal(arrays["graph"]["edge_index"], graph["edge_index"])
    np.testing.assert_array_equal(arrays["labels"], [[0.0], [np.nan]])
    torch.save({"train": torch.arange(3)}, file)
    assert load_arrays(file)["train"].tolist() == [0, 1, 2]

    class Harmful:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"graph": Harmful()}, file, pickle_protocol=4)
    with pytest.raises(GraphError, match="expected arrays and nothing else: it names pathlib"):
        load_arrays(file)
    assert not (tmp_path / "ran").exists()
    file.write_bytes(b"no archive")
    with pytest.raises(GraphError, match="data_processed: "):
        load_arrays(file)
