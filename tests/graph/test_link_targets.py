"""Importing graphs whose edges are predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopper.cli import main
from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory, Relation
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph
from hopper.graph.links import link_offsets

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

LIKES, KNOWS = Relation("person", "likes", "person"), Relation("person", "knows", "person")


def write_tables(folder: Path, *, splits: bool) -> dict[str, list[str]]:
    """Write two relations over one type, as CSV; return the lines of each."""
    folder.mkdir()
    nodes = "".join(f"{i},{i / 10},{i % 2}\n" for i in range(12))
    (folder / "nodes__person.csv").write_text("id,weight,label\n" + nodes)
    generator, lines = np.random.default_rng(0), {}
    for name, count in (("likes", 30), ("knows", 20)):
        lines[name] = [
            f"{u},{v}" + (f",{('train', 'val', 'test', '')[i % 4]}" if splits else "")
            for i, (u, v) in enumerate(generator.integers(0, 12, (count, 2)).tolist())
        ]
        head = "src,dst,split" if splits else "src,dst"
        file = folder / f"edges__person__{name}__person.csv"
        file.write_text("\n".join([head, *lines[name]]) + "\n")
    return lines


def test_splits_of_several_tables(tmp_path: Path) -> None:
    lines = write_tables(tmp_path / "tables", splits=True)
    import_graph("csv", str(tmp_path / "tables"), tmp_path / "graph")
    graph = GraphDirectory.open(tmp_path / "graph")
    assert graph.schema.target_relations == (KNOWS, LIKES)
    assert link_offsets(graph.schema).tolist() == [0, 20, 50]
    links = graph.links("val")
    assert links.ids.tolist() == [*range(1, 20, 4), *range(21, 50, 4)]
    assert links.relations.tolist() == [0] * 5 + [1] * 8
    pairs = zip(links.src.tolist(), links.dst.tolist(), strict=True)
    rows = [*lines["knows"], *lines["likes"]]
    assert [f"{u},{v},val" for u, v in pairs] == [rows[link] for link in links.ids]


def test_targets_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tables(tmp_path / "tables", splits=False)

    def run(out: str, *options: str) -> str:
        """Import, and return what is wrong."""
        arguments = ["dataset", "import", "csv", str(tmp_path / "tables"), *options]
        code, error = main([*arguments, "--out", str(tmp_path / out)]), capsys.readouterr().err
        assert (code == 0) == (tmp_path / out).exists()
        return " ".join(error.split()) if code else ""

    both = ["--target", "likes", "--target", "person/knows/person"]
    assert run("graph", *both, "--split", "random:0.6:0.2") == ""
    schema = GraphDirectory.open(tmp_path / "graph").schema
    assert schema.target_relations == (LIKES, KNOWS)
    assert sum(schema.splits.values()) == schema.target_count == 50
    assert schema.splits["train"] == pytest.approx(30, abs=3)
    assert run("all", "--target", "all") == ""
    assert GraphDirectory.open(tmp_path / "all").schema.target_relations == (KNOWS, LIKES)
    assert "one of person/knows/person, person/likes/person by its" in run("b", "--target", "hates")
    # Without labels of one type only, there is no target by default.
    (tmp_path / "tables/nodes__person.csv").write_text(
        "id\n" + "".join(f"{i}\n" for i in range(12))
    )
    (tmp_path / "tables/nodes__item.csv").write_text("id,price\n0,5\n1,6\n")
    assert "chosen by --target RELATION), given item, person" in run("none")
    assert run("one", "--target", "likes", "--split", "random:0.5:0.2") == ""
    assert GraphDirectory.open(tmp_path / "one").schema.target_relations == (LIKES,)


def test_pairs_share_a_split_whatever_their_direction_and_relation(tmp_path: Path) -> None:
    edges = np.random.default_rng(1).integers(0, 30, (2, 400))
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
    edges, edge = np.array([[0, 1, 2], [1, 2, 0]]), ("node", "edge", "node")
    by_number = ImportOptions(targets=("edge",), split=RandomSplit(1, 1))
    cases: list[tuple[type[Exception], dict[str, Any], str]] = [
        (RequestError, {"options": by_number}, "edges have no classes"),
        (GraphError, {"target": ("node", "o", "node")}, "target: expected a relation of node/edge"),
    ]
    for error, arguments, text in cases:
        with pytest.raises(error, match=text):
            GraphDirectory.from_arrays(tmp_path / "refused", edges, **arguments)
    splits = {"train": np.array([True, False, True]), "val": [1]}
    graph = GraphDirectory.from_arrays(tmp_path / "graph", edges, target=edge, splits=splits)
    assert graph.links("train").ids.tolist() == [0, 2]
    with pytest.raises(GraphError, match="split 'test'"):
        graph.links("test")
