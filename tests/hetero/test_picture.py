"""The metatree as text and picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopper.cli import main
from hopper.graph import EdgeType, GraphSchema, GraphWriter, NodeType
from hopper.graph.schema import Relation
from hopper.hetero.meta_partition import divide
from hopper.hetero.metatree import make_metatree
from hopper.hetero.picture import MOST_VERTICES, _drawn_depth, draw_metatree, list_shares

PNG = b"\x89PNG\r\n"
WRITES, WRITTEN = Relation("author", "writes", "paper"), Relation("paper", "by", "author")
LIKES = Relation("author", "likes", "venue")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("typed") / "graph"
    schema = GraphSchema(
        name="tiny",
        node_types={"paper": NodeType(3), "author": NodeType(2), "venue": NodeType(1)},
        relations={WRITES: EdgeType(2), WRITTEN: EdgeType(1), LIKES: EdgeType(1)},
        target="paper",
    )
    with GraphWriter(out, schema) as writer:
        writer.topology(WRITES, np.array([0, 1]), np.array([0, 2]))
        writer.topology(WRITTEN, np.array([1]), np.array([0]))
        writer.topology(LIKES, np.array([1]), np.array([0]))
    return out


def test_the_command(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "tree.png"
    arguments = ["metatree", str(graph), "--layers", "2", "--servers", "1", "--out", str(picture)]
    assert main(arguments) == 0
    printed = " ".join(capsys.readouterr().out.split())
    # 3 papers, 2 authors, 2 + 1 edges.
    assert "author/writes/paper │ 8" in printed
    assert "not read within 2 hops of paper: author/likes/venue" in printed
    assert picture.read_bytes().startswith(PNG)
    assert [file.name for file in tmp_path.iterdir()] == ["tree.png"]


def test_bad_options_are_named(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metatree", str(graph), "--target", "editor"]) == 1
    assert "target: expected one of author, paper, venue" in capsys.readouterr().err
    assert main(["metatree", str(graph), "--metapath", "writes,likes"]) == 1
    assert "author/likes/venue ends in 'venue'" in capsys.readouterr().err


def test_a_tree_too_large_to_draw_is_cut(tmp_path: Path) -> None:
    relations = [Relation("t", f"r{index}", "t") for index in range(20)]
    schema = GraphSchema(
        name="dense",
        node_types={"t": NodeType(5)},
        relations={relation: EdgeType(1) for relation in relations},
        target="t",
    )
    tree = make_metatree(schema, "t", 3)
    assert _drawn_depth(tree) == 1
    assert MOST_VERTICES < 20 + 20 * 20
    division = divide(schema, tree, 4)
    draw_metatree(division, tmp_path / "tree.png", "dense")
    assert (tmp_path / "tree.png").read_bytes().startswith(PNG)
    assert len(list_shares(division)) == 4
