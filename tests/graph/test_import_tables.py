"""Folders of CSV and Parquet tables: what they become, what is refused, and how much memory."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from hopper.cli import main
from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory, Labels, Relation
from hopper.graph.array_file import create_array, open_array, release_pages, save_array
from hopper.graph.importers import (
    GraphTables,
    ImportOptions,
    import_graph,
    query,
    table_folder,
    write_graph,
)
from hopper.graph.importers.database import Database, open_database
from hopper.graph.importers.read_query import read_queries
from hopper.graph.importers.table_folder import find_queries
from hopper.graph.layout import TOPOLOGY_ARRAYS, names_file
from hopper.graph.topology import build_topology

EDGES = Relation("node", "edge", "node")
PAPERS = """id,label,split,f0,f1
p-a,1,train,0.5,1
"p, b",,,2,3
p-c,0,test,4,1e1
"""
AUTHORS = "id,label_0,label_1\n0,1,0\n1,1,1\n"
CITES = 'src,dst,weight,year\np-c,p-a,0.25,3\n"p, b",p-a,0.5,4\n'
LIBRARY = {
    "nodes__paper": PAPERS,
    "nodes__author": AUTHORS,
    "edges__paper__cites__paper": CITES,
    "edges__author__writes__paper": "src,dst\n1,p-c\n",
}


def write_csv(folder: Path, tables: dict[str, str]) -> str:
    folder.mkdir(exist_ok=True)
    for name, text in tables.items():
        (folder / f"{name}.csv").write_bytes(text.encode(errors="surrogateescape"))
    return str(folder)


def write_parquet(folder: Path, tables: dict[str, dict[str, Any]]) -> str:
    folder.mkdir(exist_ok=True)
    for name, columns in tables.items():
        parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")
    return str(folder)


def make_csv(header: str, *columns: Any) -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in zip(*columns, strict=True))])


def check_refused(kind: str, folder: str, text: str) -> None:
    """Check that the import fails with a text, and leaves nothing beside the folder."""
    out = Path(folder).parent
    with pytest.raises(GraphError, match=text):
        import_graph(kind, folder, out / "graph")
    assert [path.name for path in out.iterdir()] == [Path(folder).name]


def test_csv_of_several_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "CHUNK_BYTES", 16)  # two rows of two columns a chunk
    import_graph("csv", write_csv(tmp_path / "library", LIBRARY), tmp_path / "out")
    graph = GraphDirectory.open(tmp_path / "out")
    assert (graph.schema.name, graph.schema.target) == ("library", "paper")
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
    assert names_file(graph.path, "paper").read_text() == "p-a\np, b\np-c\n"
    assert not names_file(graph.path, "author").exists()


def test_csv_with_an_edge_split_and_values(tmp_path: Path) -> None:
    tables = {"nodes": "\ufeffid,value\r\nx,0.5\r\ny,\r\n"}
    tables["edges"] = "src,dst,split\nx,y,train\ny,x,val\n"
    # A folder's name may look like a pattern, or like a column of partitions.
    folder = write_csv(tmp_path / "[a]=*", tables)
    import_graph("csv", folder, tmp_path / "out")
    graph = GraphDirectory.open(tmp_path / "out")
    assert graph.schema.target == EDGES
    assert graph.split("val").tolist() == [1]
    np.testing.assert_array_equal(graph.labels("node"), np.array([0.5, np.nan], np.float32))
    # Relations with labels are predicted together if nothing has splits.
    tables = {"nodes": "id\n0\n1\n"}
    for name in ("likes", "knows"):
        tables[f"edges__node__{name}__node"] = "src,dst,label\n0,1,1\n1,0,0\n"
    import_graph("csv", write_csv(tmp_path / "tables", tables), tmp_path / "several")
    schema = GraphDirectory.open(tmp_path / "several").schema
    assert [relation.rel for relation in schema.target_relations] == ["knows", "likes"]


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


def test_parquet_of_one_type(tmp_path: Path) -> None:
    import_graph("parquet", write_parquet(tmp_path / "tables", small()), tmp_path / "graph")
    graph = GraphDirectory.open(tmp_path / "graph")
    np.testing.assert_array_equal(graph.features("node"), [[30, 1, 2], [40, 3, 4], [50, 5, 6]])
    np.testing.assert_array_equal(graph.labels("node"), [1, -1, 0])
    np.testing.assert_array_equal(graph.split("train"), [0])
    np.testing.assert_array_equal(graph.edge_features(EDGES)[:, 0], [3, 4])
    topology = graph.topology(EDGES)
    assert (topology.indptr.tolist(), topology.indices.tolist()) == ([0, 1, 2, 2], [2, 0])
    assert names_file(graph.path, "node").read_text().split() == ["ann", "bob", "cem"]


def test_parquet_of_several_types(tmp_path: Path) -> None:
    """Ids are numbers, decimals are numbers too, and missing booleans are filled."""
    prices = [Decimal("1.25"), Decimal("3")]
    pairs = pyarrow.array([prices, prices], pyarrow.list_(pyarrow.decimal128(9, 2)))
    fixed = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(np.arange(6.0)), 3)
    papers = {
        "id": [10, 20],
        "label_0": [1, 0],
        "label_1": [1, 1],
        "x": fixed,
        "open": [True, None],
    }
    tables: dict[str, dict[str, Any]] = {
        "nodes__author": {"id": [0, 1, 2], "value": [0.5, 1, 2]},
        "nodes__paper": papers | {"price": prices, "pair": pairs, "split": ["train", None]},
        "edges__author__writes__paper": {"src": np.array([2, 0], np.int32), "dst": [20, 10]},
    }
    tables["edges__author__writes__paper"] |= {"weight": prices}
    folder = write_parquet(tmp_path / "tables", tables)
    import_graph("parquet", folder, tmp_path / "graph", ImportOptions(missing="zero"))
    graph, writes = GraphDirectory.open(tmp_path / "graph"), Relation("author", "writes", "paper")
    assert graph.schema.target == "paper"
    np.testing.assert_array_equal(graph.labels("paper"), [[1, 1], [0, 1]])
    expected = [[0, 1, 2, 1, 1.25, 1.25, 3], [3, 4, 5, 0, 3, 1.25, 3]]
    np.testing.assert_array_equal(graph.features("paper"), expected)
    np.testing.assert_array_equal(graph.topology(writes).indices, [0, 2])
    np.testing.assert_array_equal(graph.edge_weights(writes), [1.25, 3])
    assert not names_file(graph.path, "author").exists()
    assert names_file(graph.path, "paper").read_text().split() == ["10", "20"]


CITE, PAPER = "edges__paper__cites__paper", "nodes__paper"
BAD_LIBRARY = [
    (PAPER, PAPERS + "p-a,1,,1,1\n", "line 5: column id: expected a distinct id, given 'p-a'"),
    (PAPER, PAPERS + ",1,,1,1\n", "line 5: column id: expected a distinct id, given nothing"),
    (PAPER, PAPERS + "d,-1,,1,1\n", "line 5: column label: expected a class .* given '-1'"),
    (PAPER, PAPERS + "d,1,,1,one\n", "line 5: column f1: expected a finite number, given 'one'"),
    (PAPER, PAPERS + "d,1,,1,inf\n", "line 5: column f1: expected a finite number, given 'inf'"),
    (PAPER, PAPERS + '"d\n\nd",1,,1,x\n', "line 7: column f1: expected a finite number, given 'x'"),
    (PAPER, PAPERS + "d,1,,1\n", "line 5: expected 5 columns, given 4"),
    (PAPER, PAPERS + "d,1,a b,1,1\n", "split: expected a name of letters, .*'a b'"),
    (PAPER, "label,f0\n1,2\n", r"line 1: column id: expected, but missing in \['label'"),
    (PAPER, "", "line 1: expected a header of distinct columns, given nothing"),
    (PAPER, "id,id\n1,2\n", r"line 1: expected a header of distinct columns, given \['id"),
    (PAPER, "id,label,value\n", "line 1: expected one of label, value, label_0 label_1"),
    ("nodes__author", AUTHORS + "2,1,2\n", "line 4: column label_1: expected 0 or 1, given '2'"),
    (CITE, CITES + "p-a,p-z,1,1\n", "line 4: column dst: expected an id of .* given 'p-z'"),
    (CITE, CITES + "7,p-a,1,1\n", "line 4: column src: expected an id of .* given '7'"),
    (CITE, CITES + "p-a,p-a,1,x\n", "line 4: column year: expected a finite number, given 'x'"),
    (CITE, CITES + "p-a,p-a,x,1\n", "line 4: column weight: expected a positive .* given 'x'"),
    (CITE, CITES + "p-a,p-a,0,1\n", "line 4: column weight: expected a positive .* given '0'"),
    (CITE, "src,w\n", "line 1: column dst: expected, but missing"),
    ("edges__paper__cites", "src,dst\n", "expected 3 names after the first __, given"),
    ("edges__paper__in__venue", "src,dst\n", r"expected a table nodes__venue\.csv, given none"),
]


@pytest.mark.parametrize(("name", "content", "text"), BAD_LIBRARY)
def test_refused_csv(name: str, content: str, text: str, tmp_path: Path) -> None:
    folder = write_csv(tmp_path / "library", LIBRARY | {name: content})
    check_refused("csv", folder, text if text.startswith("split") else rf"{name}\.csv.*{text}")


BAD = [
    ("id\n0\n1\n", "src,dst\n0,01\n", r"line 2: column dst: expected an id of .* given '01'"),
    ("id\n0\n1\n", "src,dst\n0,0x1\n", r"line 2: column dst: expected an id of .* given '0x1'"),
    ("id\n0\n1\n", "src,dst\n0,1\n-1,0\n", r"line 3: column src: expected an id of .* given '-1'"),
    ("id\na\n\nb\n", "src,dst\na,\n", r"line 2: column dst: expected an id of .* given nothing"),
    ("id\na\n\nb\na\n", "src,dst\n", r"line 5: column id: expected a distinct id, given 'a'"),
    ("id,time\n0,0x10\n", "src,dst\n", r"line 2: column time: expected an integer, .* '0x10'"),
    ("id,time\n0,1.5\n", "src,dst\n", r"line 2: column time: expected an integer, .* '1.5'"),
    ("id,x\n0, 1.5\n1,1_0\n2,--\n", "src,dst\n", r"line 4: column x: expected a finite .* '--'"),
    ("id,x\n0,\udcff1\n", "src,dst\n", r"nodes\.csv: line 2: cannot be read as CSV: Invalid unic"),
]


@pytest.mark.parametrize(("nodes", "edges", "text"), BAD)
def test_the_line_at_fault_is_named(nodes: str, edges: str, text: str, tmp_path: Path) -> None:
    check_refused("csv", write_csv(tmp_path / "tables", {"nodes": nodes, "edges": edges}), text)


BAD_PARQUET = [
    ("nodes", {"id": ["ann", "ann", "cem"]}, "row 1: column id: expected a distinct id, .* 'ann'"),
    ("nodes", {"id": ["ann", None, "cem"]}, "row 1: column id: .* given nothing"),
    ("nodes", {"name": ["ann", "bob", "cem"]}, "column id: expected, but missing"),
    ("nodes", {"label": [0.5, 1.5, 2.5]}, "column label: expected integers or texts"),
    ("nodes", {"value": [1.0, 2.0, 3.0]}, "expected one of label, value"),
    ("nodes", {"town": [b"x", b"y", b"z"]}, "column town: expected numbers, lists of them, or"),
    ("nodes", {"age": [1, None, 3]}, "features of node: row 1, column age: expected a finite"),
    ("edges", {"weight": [1.0, None]}, "row 1: column weight: expected a positive .* given nothi"),
    (
        "nodes",
        {"embedding": [[1.0], [1, 2], [1]]},
        r"row 1: column embedding: expected 1 .*\[1\.0, ",
    ),
    ("edges", {"src": ["ann", "dora"]}, "row 1: column src: expected an id of .* given 'dora'"),
    ("edges", {"dst": [1.5, 2.5]}, "column dst: expected ids of type VARCHAR, .* given DOUBLE"),
    ("edges", {"time": [1.0, 2.5]}, "row 1: column time: expected an integer, .* given 2.5"),
]


@pytest.mark.parametrize(("table", "columns", "text"), BAD_PARQUET)
def test_refused_parquet(table: str, columns: dict[str, Any], text: str, tmp_path: Path) -> None:
    tables = small()
    if "name" in columns:
        del tables[table]["id"]
    tables[table] |= columns
    check_refused("parquet", write_parquet(tmp_path / "tables", tables), text)


def test_refused_folders(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="nowhere: not a directory"):
        import_graph("csv", str(tmp_path / "nowhere"), tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(GraphError, match=r"expected nodes\.csv or nodes__<type>\.csv, given neith"):
        import_graph("csv", str(tmp_path / "empty"), tmp_path / "out")
    folder = write_csv(tmp_path / "two", LIBRARY | {"nodes__author": "id,split\n0,train\n1,\n"})
    with pytest.raises(GraphError, match=r"target: expected splits .*RELATION.* given author, pap"):
        import_graph("csv", folder, tmp_path / "out")
    folder = write_parquet(tmp_path / "tables", small())
    (tmp_path / "tables/nodes.parquet").write_bytes(b"PAR1junkPAR1")
    with pytest.raises(GraphError, match=r"nodes\.parquet: cannot be read"):
        import_graph("parquet", folder, tmp_path / "out")


def test_flipped_bits_of_parquet_end_in_one_error_or_in_a_graph(tmp_path: Path) -> None:
    """The file is read in this process, which must survive, and again when it is encoded."""
    draw, ids = np.random.default_rng(3), [f"n{number}" for number in range(400)]
    numbers = np.arange(800.0).reshape(400, 2)
    tables = {"nodes": {"id": ids, "label": ["a", "b"] * 200, "v": list(numbers)}}
    folder = write_parquet(tmp_path / "tables", tables | {"edges": {"src": ids, "dst": ids[::-1]}})
    for number in range(24):
        file = tmp_path / "tables" / ("nodes.parquet" if number % 2 else "edges.parquet")
        content = file.read_bytes()
        damaged = np.frombuffer(content, np.uint8).copy()
        damaged[draw.integers(0, damaged.size, (1, 3, 20)[number % 3])] ^= np.uint8(
            1 << draw.integers(8)
        )
        file.write_bytes(damaged.tobytes())
        out = tmp_path / f"graph-{number}"
        with suppress(GraphError, RequestError):
            import_graph("parquet", folder, out)
            GraphDirectory.open(out)
        file.write_bytes(content)
    assert not list(tmp_path.glob(".graph*"))


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    wrong = {
        "nodes__a": "id,label,split,x,y,when\nn0,1,train,1,,2024\nn1,,train,one,2,2024-01-02\n",
        "nodes__b": "name,x\nb,1\n",
        "edges__a__to__a": "src,dst,weight\nn0,n9,1\nn9,n1,0\n",
        "edges__a__in__b": "src,dst,time\nn0,b,soon\n",
        "edges__a__in__c": "src,dst\n",
    }
    folder = write_csv(tmp_path / "tables", wrong)
    with pytest.raises(GraphError) as error:
        import_graph("csv", folder, tmp_path / "graph")
    lines = str(error.value).splitlines()
    expected = [
        "10 problems with the source:",
        "edges__a__in__c.csv: expected a table nodes__c.csv, given none",
        "nodes__b.csv: line 1: column id: expected, but missing in ['name', 'x']",
        "edges__a__in__b.csv: line 2: column time: expected an integer, or a date",
        "edges__a__to__a.csv: line 3: column weight: expected a positive number, given '0'",
        "edges__a__to__a.csv: line 3: column src: expected an id of the node table, given 'n9'",
        "edges__a__to__a.csv: line 2: column dst: expected an id of the node table, given 'n9'",
        "labels of a: expected one for all that is trained on, but 1 of 2 nodes of the split train "
        "have none (n1): leave them out of the split, or let --unlabelled-as-missing do it",
        "nodes__a.csv: line 3: column x: expected a finite number, given 'one'",
        "nodes__a.csv: line 3: column when: expected a finite number, given '2024-01-02'",
        "features of a: row 0, column y: expected a finite number, given nan (one of 1)",
    ]
    for line, text in zip(lines, expected, strict=True):
        assert text in line
    names = [f"x{number}" for number in range(25)]
    nodes = make_csv(",".join(["id", *names]), [0, 1], *[["1", "one"]] * 25)
    folder = write_csv(tmp_path / "many", {"nodes": nodes, "edges": "src,dst\n"})
    with pytest.raises(GraphError) as error:
        import_graph("csv", folder, tmp_path / "graph")
    lines = str(error.value).splitlines()
    assert (len(lines), lines[0]) == (22, "25 problems with the source:")
    assert "column x19: expected a finite number" in lines[20]
    assert lines[21] == "  and 5 more"
    assert {path.name for path in tmp_path.iterdir()} == {"tables", "many"}


def test_what_has_no_label_is_refused_or_left_out_of_training(tmp_path: Path) -> None:
    nodes = "id,label,split\na,x,train\nb,,train\nc,,test\n"
    folder = write_csv(tmp_path / "tables", {"nodes": nodes, "edges": "src,dst\n"})
    check_refused("csv", folder, r"1 of 2 nodes .* have none \(b\): .*-as-missing do it")
    command = ["dataset", "import", "csv", folder, "--out", str(tmp_path / "graph")]
    assert main([*command, "--unlabelled-as-missing"]) == 0
    graph = GraphDirectory.open(tmp_path / "graph")
    assert (graph.split("train").tolist(), graph.split("test").tolist()) == ([0], [2])


QUOTES: list[tuple[str, list[str] | str]] = [
    ('a,5" disk\nb,tape\n', ['5" disk', "tape"]),
    ('a,5" disk\nb,6" disk\n', ['5" disk', '6" disk']),
    ('"a",5" disk\n"b","a ""tape"", long"', ['5" disk', 'a "tape", long']),
    ('a,"two\nlines"\nb,""\n', ["two\nlines"]),
    ('a,5" disk\nb,"tape\n', "line 3: cannot be read as CSV: Value with unterminated quote"),
    ('a,"a tape\nb,"disk"\n', "cannot be read as CSV: Value with unterminated quote"),
    ('a,"x"y\n', "line 2: cannot be read as CSV: Value with unterminated quote"),
    ("a,x\r\nb,y\n", "cannot be read as CSV: expected lines that all end alike"),
    ('a,x\nb,"', "line 3: cannot be read as CSV: Value with unterminated quote"),
]


@pytest.mark.parametrize(("rows", "expected"), QUOTES)
@pytest.mark.parametrize("begin", ["id,kind\n", '\ufeff"id","kind"\n'])
def test_quotes(rows: str, expected: list[str] | str, begin: str, tmp_path: Path) -> None:
    """One quote within a value is part of it, as two are; one that is not closed is refused."""
    tables = {"nodes": begin + rows, "edges": "src,dst\n"}
    folder = write_csv(tmp_path / "tables", tables)
    if isinstance(expected, str):
        check_refused("csv", folder, expected)
        return
    import_graph("csv", folder, tmp_path / "graph")
    (column,) = GraphDirectory.open(tmp_path / "graph").schema.node_types["node"].columns
    assert list(column.categories) == expected


def test_numbers_are_read_as_python_reads_them(tmp_path: Path) -> None:
    nodes = "id,x,value\n0, 1.5,\n1,1_0,+2\n2,,1e-3\n"
    folder = write_csv(tmp_path / "tables", {"nodes": nodes, "edges": "src,dst\n0,1\n"})
    import_graph("csv", folder, tmp_path / "graph", ImportOptions(missing="zero"))
    graph = GraphDirectory.open(tmp_path / "graph")
    assert graph.features("node")[:, 0].tolist() == [1.5, 10, 0]
    np.testing.assert_array_equal(graph.labels("node"), np.array([np.nan, 2, 1e-3], np.float32))


@pytest.mark.parametrize("named", ["neither", "sources", "both"])
def test_the_edges_of_a_table_are_those_of_an_array(named: str, tmp_path: Path) -> None:
    """The table has parallel edges, spans several batches, and its ids may need a join."""
    draw = np.random.default_rng(1)
    count = 300_000 if named == "both" else 5000
    src, dst = draw.integers(0, 90, count), draw.integers(0, 40, count)
    # Those that are not named begin like numbers of rows.
    sources = [f"n{i}" for i in draw.permutation(90)] if named != "neither" else list(range(90))
    targets = [*range(30), *(f"t{i}" if named == "both" else i for i in range(30, 40))]
    ends = [sources[i] for i in src], [targets[i] for i in dst]
    tables = {
        "nodes__a": make_csv("id", sources),
        "nodes__b": make_csv("id,label", targets, [0] * 40),
        "edges__a__to__b": make_csv("src,dst,weight", *ends, range(1, count + 1)),
    }
    import_graph("csv", write_csv(tmp_path / "tables", tables), tmp_path / "graph")
    graph, relation = GraphDirectory.open(tmp_path / "graph"), Relation("a", "to", "b")
    expected = build_topology(src, dst, 90, 40)
    for array in TOPOLOGY_ARRAYS:
        actual = getattr(graph.topology(relation), array)
        np.testing.assert_array_equal(actual, getattr(expected, array), err_msg=array)
    np.testing.assert_array_equal(graph.edge_weights(relation), np.arange(1, count + 1))
    for node_type, ids in (("a", sources), ("b", targets)):
        file = names_file(graph.path, node_type)
        names = file.read_text().split() if file.exists() else None
        assert names == (None if ids == list(range(len(ids))) else [str(id_) for id_ in ids])


def test_edges_that_do_not_fit_memory_are_sorted_on_disk(tmp_path: Path) -> None:
    draw, edges = np.random.default_rng(2), 3_500_000
    src, dst = draw.integers(0, 1000, (2, edges)).astype(np.int32)
    database, spilled_bytes, blocks = Database(tmp_path, 0, 50 << 20), 0, []
    for block in database.sort_edges(src, dst, "edges"):
        spilled = sum(file.stat().st_size for file in (tmp_path / "engine").iterdir())
        spilled_bytes = max(spilled_bytes, spilled)
        blocks.append(block)
    database.close()
    assert spilled_bytes > 10 << 20
    columns = [np.concatenate(parts) for parts in zip(*blocks, strict=True)]
    order = np.lexsort((np.arange(edges), src, dst))
    for array, expected in zip(columns, (src[order], dst[order], order), strict=True):
        np.testing.assert_array_equal(array, expected)


def test_too_much_memory_or_disk_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {"nodes": "id,label\n0,1\n1,0\n", "edges": "src,dst\n0,1\n"}
    folder, out = write_csv(tmp_path / "tables", tables), tmp_path / "graph"

    def check_refused(text: str, **options: Any) -> None:
        with pytest.raises(RequestError, match=text):
            import_graph("csv", folder, out, ImportOptions(**options))
        assert [path.name for path in tmp_path.iterdir()] == ["tables"]

    check_refused(r"--memory-limit: expected at least \d+M, given 100M", memory_limit=100 << 20)
    with pytest.raises(RequestError, match="--memory-limit: expected an import of csv or parquet"):
        import_graph("npy", folder, out, ImportOptions(memory_limit=4 << 30))
    leaves = "needs about .* of which --memory-limit leaves"
    for module, name, option, text in (
        (
            table_folder,
            "_DISK",
            "",
            r"too little disk space: about [\d.]+ GiB needed for the graph",
        ),
        (write_graph, "_SYMMETRIZED", "symmetrize", f"--symmetrize: {leaves}"),
        (write_graph, "_COMPONENT_NODE", "largest_component", f"--largest-component: {leaves}"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, 2**60)
            check_refused(text, **({option: True} if option else {}))
    with open_database(out, 2 << 30) as database:
        database.memory = 1 << 30  # whatever this process has taken by now
        with database.reserve(200 << 20, "edges"):
            pass
        with pytest.raises(RequestError, match=r"edges: needs about 2\.\d+ GiB of memory, of whic"):
            database.reserve(2 << 30, "edges").__enter__()


def test_a_column_of_a_parquet_file_may_be_larger_than_the_databases_memory(tmp_path: Path) -> None:
    rows = np.random.default_rng(4).random((100_000, 400), np.float32)
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.reshape(-1)), 400)
    tables = {"nodes": {"id": np.arange(100_000), "x": lists}, "edges": {"src": [0], "dst": [1]}}
    folder = write_parquet(tmp_path / "tables", tables)
    with open_database(tmp_path / "graph") as database:
        database.memory = 170 << 20
        with database.reserve(0, "nothing"):
            graph = GraphTables("graph", "")
            queries = find_queries(Path(folder), "parquet", database, graph.problems)
            read_queries(queries, database, graph, folder)
            features = graph.nodes["node"].features
            assert features is not None
            for first, chunk in features.chunks():
                np.testing.assert_array_equal(chunk, rows[first : first + len(chunk)])


def test_memory_of_tables_is_given_back(tmp_path: Path) -> None:
    with open_database(tmp_path / "graph", 2 << 30) as database:
        used = "SELECT sum(memory_usage_bytes)::BIGINT FROM duckdb_memory()"
        numbers = "SELECT range AS a, range AS b, range AS c FROM range(7_000_000)"
        database.fetch(f"CREATE TABLE numbers AS {numbers}")
        assert database.fetch(used)[0][0] > 140 << 20
        database.release()
        assert database.fetch(used)[0][0] <= 128 << 20
        assert database.fetch("SELECT max(b) FROM numbers") == [(6_999_999,)]


def test_the_command_prints_what_it_needs_and_its_progress(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Files of a killed import go."""
    (tmp_path / ".graph.unfinished-abcdefgh").mkdir()
    tables = {"nodes": {"id": ["a", "b"]}, "edges": {"src": ["b", "a"], "dst": ["a", "a"]}}
    folder, out = write_parquet(tmp_path / "tables", tables), tmp_path / "graph"
    request = ["dataset", "import", "parquet", folder, "--out", str(out)]
    assert main([*request, "--memory-limit", "2G"]) == 0
    printed = capfd.readouterr()
    lines = printed.err.splitlines()
    assert lines[0].startswith("memory: at most 2.00 GiB (--memory-limit); disk: about ")
    assert [line.rsplit(":", 1)[0] for line in lines[1:]] == [
        "nodes.parquet",
        "edges.parquet",
        "edges.parquet: ids to numbers",
        f"edges of {EDGES}: in order",
    ]
    assert printed.out == f"{out}: tables: 2 nodes, 2 edges\n"
    assert {path.name for path in tmp_path.iterdir()} == {"tables", "graph"}
    np.testing.assert_array_equal(GraphDirectory.open(out).topology(EDGES).indices, [0, 1])


def test_pages_of_maps_are_given_back(tmp_path: Path) -> None:
    """What was written through them stays."""
    file = tmp_path / "array.npy"
    array = create_array(file, np.int64, (1 << 20,))
    array[:] = np.arange(1 << 20)
    assert _resident(file) >= 8 << 20
    release_pages(array[5:].reshape(-1))
    assert _resident(file) < 1 << 20
    save_array(tmp_path / "copy.npy", array)
    assert _resident(file) < 1 << 20
    assert (tmp_path / "copy.npy").read_bytes() == file.read_bytes()
    np.testing.assert_array_equal(open_array(file, "x", np.int64, (1 << 20,)), array)


def _resident(file: Path) -> int:
    lines = Path("/proc/self/smaps").read_text().splitlines()
    starts = [place for place, line in enumerate(lines) if line.endswith(str(file))]
    return sum(
        1024 * int(line.split()[1])
        for start in starts
        for line in lines[start : start + 5]
        if line.startswith("Rss:")
    )
