"""Importing graphs whose edges are predicted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hopper.cli import main
from hopper.errors import GraphError, RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph
from hopper.graph.links import link_offsets
from hopper.graph.schema import Relation
from hopper.graph.schema_json import schema_from_json, schema_to_json

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

LIKES, KNOWS = Relation("person", "likes", "person"), Relation("person", "knows", "person")


def write_tables(folder: Path, *, splits: bool) -> None:
    """Two relations over one type, as CSV."""
    folder.mkdir()
    nodes = "".join(f"{i},{i / 10},{i % 2}\n" for i in range(12))
    (folder / "nodes__person.csv").write_text("id,weight,label\n" + nodes)
    generator = np.random.default_rng(0)
    for name, count in (("likes", 30), ("knows", 20)):
        rows = [
            f"{u},{v}" + (f",{('train', 'val', 'test', '')[i % 4]}" if splits else "")
            for i, (u, v) in enumerate(generator.integers(0, 12, (count, 2)).tolist())
        ]
        head = "src,dst,split" if splits else "src,dst"
        file = folder / f"edges__person__{name}__person.csv"
        file.write_text("\n".join([head, *rows]) + "\n")


def test_splits_of_several_tables(tmp_path: Path) -> None:
    write_tables(tmp_path / "tables", splits=True)
    import_graph("csv", str(tmp_path / "tables"), tmp_path / "graph")
    graph = GraphDirectory.open(tmp_path / "graph")
    assert graph.schema.target_relations == (KNOWS, LIKES)
    assert link_offsets(graph.schema).tolist() == [0, 20, 50]
    links = graph.links("val")
    assert links.ids.tolist() == [*range(1, 20, 4), *range(21, 50, 4)]
    assert links.relations.tolist() == [0] * 5 + [1] * 8
    rows = (tmp_path / "tables" / "edges__person__likes__person.csv").read_text().splitlines()[1:]
    expected = [rows[i - 20].split(",")[:2] for i in links.ids[5:]]
    pairs = zip(links.src[5:].tolist(), links.dst[5:].tolist(), strict=True)
    assert [list(map(str, pair)) for pair in pairs] == expected
    # As JSON and back.
    assert schema_from_json(schema_to_json(graph.schema), "here") == graph.schema


def test_targets_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tables(tmp_path / "tables", splits=False)
    arguments = ["dataset", "import", "csv", str(tmp_path / "tables")]
    options = ["--target", "likes", "--target", "person/knows/person", "--split", "random:0.6:0.2"]
    assert main([*arguments, "--out", str(tmp_path / "graph"), *options]) == 0
    schema = GraphDirectory.open(tmp_path / "graph").schema
    assert schema.target_relations == (LIKES, KNOWS)
    assert sum(schema.splits.values()) == schema.target_count == 50
    assert schema.splits["train"] == pytest.approx(30, abs=3)
    assert main([*arguments, "--out", str(tmp_path / "all"), "--target", "all"]) == 0
    assert GraphDirectory.open(tmp_path / "all").schema.target_relations == (KNOWS, LIKES)
    capsys.readouterr()
    assert main([*arguments, "--out", str(tmp_path / "other"), "--target", "hates"]) != 0
    assert (
        "one of person/knows/person, person/likes/person by its triple" in capsys.readouterr().err
    )


def test_tables_without_a_target_need_it_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "nodes__user.csv").write_text("id,age\n0,3\n1,4\n")
    (folder / "nodes__item.csv").write_text("id,price\n0,5\n1,6\n2,7\n")
    (folder / "edges__user__buys__item.csv").write_text("src,dst\n0,0\n0,2\n1,1\n")
    arguments = ["dataset", "import", "csv", str(folder), "--out", str(tmp_path / "graph")]
    assert main(arguments) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "chosen by --target RELATION), given" in error
    assert main([*arguments, "--target", "buys", "--split", "random:0.5:0.2"]) == 0
    schema = GraphDirectory.open(tmp_path / "graph").schema
    assert schema.target_relations == (Relation("user", "buys", "item"),)
    assert sum(schema.splits.values()) == 3


def test_pairs_share_a_split_whatever_their_direction_and_relation(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    edges = generator.integers(0, 30, (2, 400))
    graph = GraphDirectory.from_arrays(
        tmp_path / "graph",
        {tuple(LIKES): edges, tuple(KNOWS): edges[::-1]},
        counts={"person": 30},
        options=ImportOptions(targets=("all",), split=RandomSplit(0.5, 0.25), seed=4),
    )
    of_pair: dict[frozenset[int], str] = {}
    for name in ("train", "val", "test"):
        links = graph.links(name)
        for pair in zip(links.src.tolist(), links.dst.tolist(), strict=True):
            assert of_pair.setdefault(frozenset(pair), name) == name
    assert graph.schema.splits["train"] == pytest.approx(400, abs=8)


def test_targets_that_do_not_fit_are_named(tmp_path: Path) -> None:
    edges = np.array([[0, 1, 2], [1, 2, 0]])
    with pytest.raises(RequestError, match="edges have no classes"):
        GraphDirectory.from_arrays(
            *(tmp_path / "a", edges),
            options=ImportOptions(targets=("edge",), split=RandomSplit(1, 1)),
        )
    with pytest.raises(GraphError, match="target: expected a relation of node/edge/node"):
        GraphDirectory.from_arrays(tmp_path / "b", edges, target=("node", "other", "node"))
    graph = GraphDirectory.from_arrays(
        *(tmp_path / "c", edges),
        target=("node", "edge", "node"),
        splits={"train": np.array([True, False, True]), "val": [1]},
    )
    assert graph.links("train").ids.tolist() == [0, 2]
    with pytest.raises(GraphError, match="split 'test'"):
        graph.links("test")
