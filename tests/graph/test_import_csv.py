"""Node and edge tables; every error names file, line and column."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from hopper.errors import GraphError
from hopper.graph import GraphDirectory, Labels, Relation
from hopper.graph.importers import import_graph, table_columns
from hopper.graph.importers.csv_lines import read_header

PAPERS = """id,label,split,f0,f1
p-a,1,train,0.5,1
"p, b",,,2,3
p-c,0,test,4,1e1
"""
AUTHORS = "id,label_0,label_1\n0,1,0\n1,1,1\n"
CITES = 'src,dst,weight,year\np-c,p-a,0.25,3\n"p, b",p-a,0.5,4\n'
WRITES = "src,dst\n1,p-c\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two node types and two relations."""
    source = tmp_path / "library"
    source.mkdir()
    for name, text in {
        "nodes__paper": PAPERS,
        "nodes__author": AUTHORS,
        "edges__paper__cites__paper": CITES,
        "edges__author__writes__paper": WRITES,
    }.items():
        (source / f"{name}.csv").write_text(text, encoding="utf-8")
    return source


def test_everything_is_read(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_columns, "CHUNK_BYTES", 16)  # two rows of two columns a chunk
    import_graph("csv", str(folder), tmp_path / "out")
    graph = GraphDirectory.open(tmp_path / "out")
    assert graph.schema.name == "library"
    assert graph.schema.target == "paper"
    assert graph.features("paper").tolist() == [[0.5, 1], [2, 3], [4, 10]]
    assert graph.labels("paper").tolist() == [1, -1, 0]
    assert graph.labels("author").tolist() == [[1, 0], [1, 1]]
    assert graph.schema.labels["author"] == Labels("multi_hot", 2)
    cites = Relation("paper", "cites", "paper")
    assert graph.topology(cites).indices.tolist() == [1, 2]
    assert graph.edge_features(cites)[:, 0].tolist() == [3, 4]
    assert graph.edge_weights(cites).tolist() == [0.25, 0.5]
    assert graph.topology(Relation("author", "writes", "paper")).indices.tolist() == [1]
    assert (graph.split("train").tolist(), graph.split("test").tolist()) == ([0], [2])
    names = (tmp_path / "out/names/paper.txt").read_text(encoding="utf-8")
    assert names == "p-a\np, b\np-c\n"
    assert not (tmp_path / "out/names/author.txt").exists()


def test_homogeneous_with_an_edge_split_and_float_labels(tmp_path: Path) -> None:
    source = tmp_path / "friends"
    source.mkdir()
    (source / "nodes.csv").write_text("\ufeffid,value\r\nx,0.5\r\ny,\r\n", encoding="utf-8")
    (source / "edges.csv").write_text("src,dst,split\nx,y,train\ny,x,val\n", encoding="utf-8")
    import_graph("csv", str(source), tmp_path / "out")
    graph = GraphDirectory.open(tmp_path / "out")
    relation = Relation("node", "edge", "node")
    assert graph.schema.target == relation
    assert graph.split("val").tolist() == [1]
    assert np.array_equal(graph.labels("node"), np.array([0.5, np.nan], np.float32), equal_nan=True)


BAD_TABLES = [
    ("nodes__paper", PAPERS + "p-a,1,,1,1\n", "line 5: column id: expected a distinct id, given"),
    ("nodes__paper", PAPERS + ",1,,1,1\n", "line 5: column id: expected a distinct id, given ''"),
    (
        "nodes__paper",
        PAPERS + "d,-1,,1,1\n",
        "line 5: column label: expected a class .* given '-1'",
    ),
    ("nodes__paper", PAPERS + "d,1,,1,one\n", "line 5: column f1: expected a number, given 'one'"),
    ("nodes__paper", PAPERS + "d,1,,1,inf\n", "line 5: column f1: expected a finite number, give"),
    ("nodes__paper", PAPERS + "d,1,,1\n", "line 5: expected 5 columns, given 4"),
    ("nodes__paper", PAPERS + "d,1,a b,1,1\n", "split: expected a name of letters, .*'a b'"),
    ("nodes__paper", "label,f0\n1,2\n", r"line 1: column id: expected, but missing in \['label'"),
    ("nodes__paper", "", "line 1: expected a header of distinct columns, given nothing"),
    ("nodes__paper", "id,id\n1,2\n", r"line 1: expected a header of distinct columns, given \['id"),
    ("nodes__paper", "id,label,value\n", "line 1: expected one of label, value, label_0 label_1"),
    ("nodes__author", AUTHORS + "2,1,2\n", "line 4: column label_1: expected 0 or 1, given '2'"),
    (
        "edges__paper__cites__paper",
        CITES + "p-a,p-z,1,1\n",
        "line 4: column dst: expected an id of",
    ),
    (
        "edges__paper__cites__paper",
        CITES + "7,p-a,1,1\n",
        "line 4: column src: expected an id of th",
    ),
    ("edges__paper__cites__paper", CITES + "p-a,p-a,1,x\n", "line 4: column year: expected a numb"),
    (
        "edges__paper__cites__paper",
        CITES + "p-a,p-a,x,1\n",
        "line 4: column weight: expected a num",
    ),
    (
        "edges__paper__cites__paper",
        CITES + "p-a,p-a,0,1\n",
        "line 4: column weight: expected a pos",
    ),
    ("edges__paper__cites__paper", "src,w\n", "line 1: column dst: expected, but missing"),
    ("edges__paper__cites", "src,dst\n", "expected 3 names after the first __, given"),
    ("edges__paper__in__venue", "src,dst\n", r"expected a table nodes__venue\.csv, given none"),
]


@pytest.mark.parametrize(("name", "content", "text"), BAD_TABLES)
def test_refused_tables(folder: Path, name: str, content: str, text: str) -> None:
    (folder / f"{name}.csv").write_text(content, encoding="utf-8")
    with pytest.raises(GraphError, match=text) as error:
        import_graph("csv", str(folder), folder.parent / "out")
    place = folder if text.startswith("split") else f"{name}.csv"
    assert str(place) in str(error.value)
    assert [entry.name for entry in folder.parent.iterdir()] == ["library"]


def test_refused_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="nowhere: not a directory"):
        import_graph("csv", str(tmp_path / "nowhere"), tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(GraphError, match=r"expected nodes\.csv or nodes__<type>\.csv, given neith"):
        import_graph("csv", str(tmp_path / "empty"), tmp_path / "out")
    (folder / "nodes__author.csv").write_bytes(b"id\n\xff\n")
    with pytest.raises(GraphError, match=r"nodes__author\.csv: cannot be read as CSV"):
        import_graph("csv", str(folder), tmp_path / "out")
    (folder / "nodes__author.csv").write_text("id,split\n0,train\n1,\n", encoding="utf-8")
    with pytest.raises(
        GraphError,
        match="split or label column in one table, or --target RELATION; given author, paper",
    ):
        import_graph("csv", str(folder), tmp_path / "out")


def test_a_header_of_many_columns_is_read_in_linear_time(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(100_000)]
    (tmp_path / "nodes.csv").write_text(",".join(names) + "\n")
    before = time.process_time()
    assert read_header(tmp_path / "nodes.csv") == names
    # Each name was looked for in the whole header: minutes.
    assert time.process_time() - before < 20
