"""Graphs saved by DGL, written and read by DGL itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory, Labels, Relation
from hopper.graph.importers import import_graph
from hopper.graph.importers.dgl import read_dgl

os.environ.setdefault("DGLBACKEND", "pytorch")


@pytest.fixture(scope="module")
def dgl() -> Any:
    """Return the library, or skip the test."""
    return pytest.importorskip("dgl", reason="DGL is not installed")


def import_saved(dgl: Any, graphs: Any, folder: Path) -> tuple[GraphDirectory, list[str]]:
    """Save with DGL, import, open with all checks."""
    source = str(folder / "saved.bin")
    dgl.save_graphs(source, graphs)
    notes = import_graph("dgl", source, folder / "out")
    return GraphDirectory.open(folder / "out"), notes


def homogeneous(dgl: Any) -> Any:
    """Four nodes with features, labels and masks; two parallel edges."""
    graph = dgl.graph((torch.tensor([3, 0, 3, 1]), torch.tensor([0, 1, 0, 0])), num_nodes=4)
    graph.ndata["feat"] = torch.arange(8.0).reshape(4, 2)
    graph.ndata["label"] = torch.tensor([2, -1, 0, 1])
    graph.ndata["train_mask"] = torch.tensor([True, False, False, True])
    graph.ndata["val_mask"] = torch.tensor([0, 0, 1, 0], dtype=torch.uint8)
    graph.ndata["year"] = torch.zeros(4)
    graph.edata["feat"] = torch.tensor([0.0, 1.0, 2.0, 3.0])
    return graph


def test_heterogeneous_with_repeated_names(dgl: Any, tmp_path: Path) -> None:
    pair = (torch.tensor([0, 1]), torch.tensor([0, 0]))
    graph = dgl.heterograph(
        {
            ("author", "linked", "paper"): pair,
            ("paper", "linked", "author"): (pair[1], pair[0]),
            ("paper", "is about", "topic"): ([], []),
        },
        num_nodes_dict={"author": 2, "paper": 1, "topic": 0},
    )
    graph.nodes["author"].data["feat"] = torch.ones(2, 3, dtype=torch.float64)
    graph.nodes["author"].data["label"] = torch.tensor([[0, 1], [1, 1]])
    graph.nodes["author"].data["test_mask"] = torch.tensor([[False, True], [True, False]])
    result, notes = import_saved(dgl, [graph], tmp_path)
    assert result.schema.target == "author"
    assert result.schema.labels["author"] == Labels("multi_hot", 2)
    assert result.features("author").dtype == np.float32
    assert result.topology(Relation("author", "linked", "paper")).indices.tolist() == [0, 1]
    assert result.topology(Relation("paper", "linked", "author")).indices.tolist() == [0, 0]
    assert result.schema.relations[Relation("paper", "is_about", "topic")].count == 0
    assert result.split("test").tolist() == [1]
    assert notes == ["test_mask of author: the first of 2 splits was taken"]


def test_edge_masks_make_the_relation_the_target(dgl: Any, tmp_path: Path) -> None:
    graph = dgl.graph(([0, 1, 2], [1, 2, 0]))
    graph.edata["train_mask"] = torch.tensor([True, False, True])
    result, _ = import_saved(dgl, [graph], tmp_path)
    assert result.schema.target == Relation("_N", "_E", "_N")
    assert result.split("train").tolist() == [0, 2]


def test_refused_files(dgl: Any, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"nowhere\.bin: saved graphs: missing file"):
        read_dgl(tmp_path / "nowhere.bin")
    (tmp_path / "junk.bin").write_bytes(b"junk" * 100)
    with pytest.raises(GraphError, match=r"junk\.bin: DGL cannot read it as saved graphs"):
        import_graph("dgl", str(tmp_path / "junk.bin"), tmp_path / "out")
    graph = homogeneous(dgl)
    with pytest.raises(GraphError, match="expected one graph, given 2"):
        import_saved(dgl, [graph, graph], tmp_path)
    graph.ndata["test_mask"] = torch.tensor([0.5, 0, 0, 0])
    with pytest.raises(GraphError, match="test_mask of _N: expected a mask of 0 and 1"):
        import_saved(dgl, [graph], tmp_path)
    two_types = dgl.heterograph({("a", "to", "b"): ([0], [0])})
    with pytest.raises(GraphError, match=r"target: expected splits or labels of .*, given a, b"):
        import_saved(dgl, [two_types], tmp_path)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the library leaves files open
def test_one_part_of_a_divided_graph_is_refused(dgl: Any, tmp_path: Path) -> None:
    dgl.distributed.partition_graph(dgl.rand_graph(50, 200), "shop", 2, str(tmp_path / "parts"))
    with pytest.raises(
        GraphError, match=r"one part of a .* \(it has inner_edge, inner_node\).*; import the graph"
    ):
        read_dgl(tmp_path / "parts/part0/graph.dgl")


def test_without_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saved.bin").touch()
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(RequestError, match=r"pip install dgl==1\.1\.3"):
        read_dgl(tmp_path / "saved.bin")


def test_damaged_files_leave_nothing(dgl: Any, tmp_path: Path) -> None:
    """The library may refuse them, or die of them, and the process with it."""
    file, out = tmp_path / "saved.bin", tmp_path / "out"
    dgl.save_graphs(str(file), [homogeneous(dgl)])
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    command = [sys.executable, "-m", "hopper.cli", "dataset", "import", "dgl", str(file)]
    ended = subprocess.run([*command, "--out", str(out)], capture_output=True, check=False)
    assert ended.returncode < 0 or ended.stderr.count(b"error: ") == ended.returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["saved.bin"]
