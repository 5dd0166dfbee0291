"""Graphs of PyTorch Geometric: objects, what they turn into, and saved files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopper import GraphDirectory, GraphError
from hopper.graph.importers import import_graph, pyg
from hopper.graph.importers.pyg import tables_from_pyg
from hopper.graph.schema import Relation

EDGES = Relation("node", "edge", "node")


def homogeneous() -> dict[str, Any]:
    """As ``Data.to_dict()`` returns it."""
    return {
        "x": torch.arange(8.0).view(4, 2),
        "edge_index": torch.tensor([[3, 0, 3, 1, 2], [0, 1, 0, 0, 2]]),
        "edge_attr": torch.arange(5.0),
        "edge_weight": torch.arange(1.0, 6.0),
        "edge_type": torch.zeros(5),
        "y": torch.tensor([1, 0, 2, 1]),
        "train_mask": torch.tensor([True, False, True, False]),
        "val_mask": torch.tensor([False, True, False, False]),
        "pos": torch.zeros(4, 3),
    }


def typed() -> dict[Any, Any]:
    """As ``HeteroData.to_dict()`` returns it."""
    return {
        "_global_store": {},
        "author": {"num_nodes": 3},
        "paper": {
            "x": torch.ones(2, 5),
            "y": torch.tensor([[0.0, 1.0], [1.0, 1.0]]),
            "train_mask": torch.tensor([True, True]),
        },
        ("author", "writes", "paper"): {"edge_index": torch.tensor([[0, 2], [1, 0]])},
        ("paper", "rev writes", "author"): {"edge_index": torch.tensor([[1, 0], [0, 2]])},
    }


def import_file(file: Path, out: Path) -> list[str]:
    """Import in this process, which has imported torch already."""
    return import_graph("pyg", str(file), out)


def test_one_type(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="left out") as caught_warnings:
        graph = GraphDirectory.from_pyg(homogeneous(), tmp_path / "graph")
    assert sorted(str(warning.message) for warning in caught_warnings) == [
        "data of node left out: pos",
        "data of node/edge/node left out: edge_type",
    ]
    assert graph.schema.target == "node"
    assert graph.schema.node_types["node"].count == 4
    np.testing.assert_array_equal(graph.features("node"), np.arange(8.0).reshape(4, 2))
    np.testing.assert_array_equal(graph.labels("node"), [1, 0, 2, 1])
    np.testing.assert_array_equal(graph.edge_features(EDGES)[:, 0], np.arange(5.0))
    np.testing.assert_array_equal(graph.edge_weights(EDGES), np.arange(1.0, 6.0))
    np.testing.assert_array_equal(graph.split("train"), [0, 2])
    np.testing.assert_array_equal(np.diff(graph.topology(EDGES).indptr), [3, 1, 1, 0])


def test_several_types(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="y of paper: all are 0 or 1"):
        graph = GraphDirectory.from_pyg(typed(), tmp_path / "graph")
    assert graph.schema.target == "paper"
    assert graph.schema.labels["paper"].kind == "multi_hot"
    assert {name: kind.count for name, kind in graph.schema.node_types.items()} == {
        "author": 3,
        "paper": 2,
    }
    assert set(graph.schema.relations) == {
        Relation("author", "writes", "paper"),
        Relation("paper", "rev_writes", "author"),
    }


def test_saved_files(tmp_path: Path) -> None:
    torch.save(homogeneous(), tmp_path / "plain.pt")
    notes = import_graph("pyg", str(tmp_path / "plain.pt"), tmp_path / "plain")
    assert "data of node left out: pos" in notes
    # As a dataset keeps its only graph, but for the class, which is PyG's.
    slices = {"x": torch.tensor([0, 4]), "edge_index": torch.tensor([0, 5])}
    torch.save((homogeneous(), slices), tmp_path / "dataset.pt")
    import_file(tmp_path / "dataset.pt", tmp_path / "dataset")
    for name in ("plain", "dataset"):
        assert GraphDirectory.open(tmp_path / name).schema.splits == {"train": 2, "val": 1}
    torch.save((homogeneous(), {"x": torch.tensor([0, 2, 4])}), tmp_path / "two.pt")
    with pytest.raises(GraphError, match="expected a dataset of one graph, given 2 graphs"):
        import_file(tmp_path / "two.pt", tmp_path / "two")


class Harmful:
    """Unpickling this would run code of its choice."""

    def __reduce__(self) -> Any:
        return (Path.touch, (Path("harm-was-done"),))


def test_only_files_of_its_classes_import_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes longer to import than most files to read."""
    monkeypatch.setattr(pyg, "_plain_classes", lambda: pytest.fail("PyG was imported"))
    torch.save(homogeneous(), tmp_path / "plain.pt")
    import_file(tmp_path / "plain.pt", tmp_path / "plain")


def test_nothing_in_a_file_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"x": Harmful()}, "harmful.pt")
    with pytest.raises(GraphError, match="torch cannot read it without unpickling"):
        import_graph("pyg", "harmful.pt", "out")
    assert not Path("harm-was-done").exists()
    Path("junk.pt").write_bytes(b"junk")
    with pytest.raises(GraphError, match=r"junk\.pt: torch cannot read it"):
        import_file(Path("junk.pt"), Path("out"))


def test_the_advice_on_arrays_of_numpy_helps(tmp_path: Path) -> None:
    file, texts = tmp_path / "data.pt", np.array(["a", "b", "c", "d"])
    torch.save(homogeneous() | {"name": texts}, file)
    with pytest.raises(
        GraphError, match=r"holds NumPy's data; .*texts as lists \(array.tolist"
    ) as e:
        import_file(file, tmp_path / "out")
    assert str(e.value).isprintable()
    torch.save(homogeneous() | {"name": texts.tolist()}, file)
    assert "data of node left out: name, pos" in import_file(file, tmp_path / "out")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"edge_index": torch.zeros(3, 2, dtype=torch.int64)}, r"edge_index: expected integers of"),
        ({"edge_index": torch.zeros(2, 2)}, r"edge_index: expected integers of"),
        ({"x": torch.zeros(2, 2, 2)}, r"x of node: expected shape \[n, d\]"),
        ({"train_mask": torch.tensor([4, 0, 0, 0])}, "train_mask of node: expected a mask"),
        ({"adj_t": object()}, "adj_t: a sparse matrix of another library"),
    ],
)
def test_what_is_not_understood_is_named(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(GraphError, match=match):
        tables_from_pyg(homogeneous() | changes, "graph", "graph")
    with pytest.raises(GraphError, match="expected a PyG Data or HeteroData, given int"):
        tables_from_pyg(3, "graph", "graph")


def test_the_librarys_own_classes(tmp_path: Path) -> None:
    data = pytest.importorskip("torch_geometric.data", reason="PyG is not installed")
    graph_of_pyg = data.Data(**homogeneous())
    torch.save(graph_of_pyg, tmp_path / "data.pt")
    import_graph("pyg", str(tmp_path / "data.pt"), tmp_path / "out")
    typed_data = data.HeteroData.from_dict(typed())
    with pytest.warns(UserWarning, match="several labels"):
        GraphDirectory.from_pyg(typed_data, tmp_path / "typed")
    data.InMemoryDataset.save([graph_of_pyg], str(tmp_path / "processed.pt"))
    import_file(tmp_path / "processed.pt", tmp_path / "again")
    for name in ("out", "again"):
        graph = GraphDirectory.open(tmp_path / name)
        np.testing.assert_array_equal(graph.features("node"), np.arange(8.0).reshape(4, 2))
