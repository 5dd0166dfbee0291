"""Folders of CSV and Parquet tables: what they become, what is refused, and how much memory."""

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
from hopper.graph import GraphDirectory, Labels, Relation, build_topology
from hopper.graph.importers import (
    GraphTables,
    ImportOptions,
    import_graph,
    query_features,
    table_folder,
    write_graph,
)
from hopper.graph.importers.database import Database, open_database
from hopper.graph.importers.read_query import read_queries
from hopper.graph.importers.table_folder import find_queries
from hopper.graph.layout import TOPOLOGY_ARRAYS, names_file

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


def test_csv(tmp_path, monkeypatch):
    monkeypatch.setattr(query_features, "CHUNK_BYTES", 16)  # two rows of two columns a chunk
    import_graph("csv", write_csv(tmp_path / "library", LIBRARY), tmp_path / "out")
    graph = GraphDirectory.open(tmp_path / "out")
    assert (graph.schema.name, graph.schema.target) == ("library", "paper")
    assert graph.features("paper").tolist() == [[0.5, 1], [2, 3], [4, 10]]
    assert graph.labels("paper").tolist() == [1, -1, 0]
    assert graph.labels("author").tolist() == [[1, 0], [1, 1]]
    assert graph.schema.labels["author"] == Labels("multi_hot", 2)
    cites = Relation("paper", "cites", "paper")
    assert graph.topology(cites).indices.tolist() == [1, 2]
    assert graph.features(cites)[:, 0].tolist() == [3, 4]
    assert graph.edge_weights(cites).tolist() == [0.25, 0.5]
    assert graph.topology(Relation("author", "writes", "paper")).indices.tolist() == [1]
    assert (graph.split("train").tolist(), graph.split("test").tolist()) == ([0], [2])
    assert names_file(graph.path, "paper").read_text() == "p-a\np, b\np-c\n"
    assert not names_file(graph.path, "author").exists()
    # Edges have splits, and numbers are read as Python reads them.
    tables = {"nodes": "\ufeffid,x,value\r\na, 1.5,\r\nb,1_0,+2\r\nc,,1e-3\r\n"}
    tables["edges"] = "src,dst,split\na,b,train\nb,a,val\n"
    # A folder's name may look like a pattern, or like a column of partitions.
    folder = write_csv(tmp_path / "[a]=*", tables)
    import_graph("csv", folder, tmp_path / "values", ImportOptions(missing="zero"))
    graph = GraphDirectory.open(tmp_path / "values")
    assert (graph.schema.target, graph.split("val").tolist()) == (EDGES, [1])
    assert graph.features("node")[:, 0].tolist() == [1.5, 10, 0]
    np.testing.assert_array_equal(graph.labels("node"), np.array([np.nan, 2, 1e-3], np.float32))
    # Relations with labels are predicted together if nothing has splits.
    tables = {"nodes": "id\n0\n1\n"}
    for name in ("likes", "knows"):
        tables[f"edges__node__{name}__node"] = "src,dst,label\n0,1,1\n1,0,0\n"
    import_graph("csv", write_csv(tmp_path / "tables", tables), tmp_path / "several")
    schema = GraphDirectory.open(tmp_path / "several").schema
    assert [relation.rel for relation in schema.target_relations] == ["knows", "likes"]


def test_parquet(tmp_path):
    """Ids are texts or numbers, decimals are numbers too, and missing booleans are filled."""
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
        "nodes__author": {"id": ["ann", "bob", "cem"], "label": [1, None, 0]},
        "nodes__paper": papers | {"price": prices, "pair": pairs, "split": ["train", None]},
        "edges__author__writes__paper": {"src": ["cem", "ann"], "dst": [20, 10], "weight": prices},
        "edges__paper__cites__paper": {"src": np.array([10], np.int32), "dst": [20]},
    }
    folder = write_parquet(tmp_path / "tables", tables)
    import_graph("parquet", folder, tmp_path / "graph", ImportOptions(missing="zero"))
    graph, writes = GraphDirectory.open(tmp_path / "graph"), Relation("author", "writes", "paper")
    assert graph.schema.target == "paper"
    np.testing.assert_array_equal(graph.labels("paper"), [[1, 1], [0, 1]])
    np.testing.assert_array_equal(graph.labels("author"), [1, -1, 0])
    np.testing.assert_array_equal(graph.split("train"), [0])
    expected = [[0, 1, 2, 1, 1.25, 1.25, 3], [3, 4, 5, 0, 3, 1.25, 3]]
    np.testing.assert_array_equal(graph.features("paper"), expected)
    np.testing.assert_array_equal(graph.topology(writes).indices, [0, 2])
    np.testing.assert_array_equal(graph.edge_weights(writes), [1.25, 3])
    assert names_file(graph.path, "author").read_text().split() == ["ann", "bob", "cem"]
    assert names_file(graph.path, "paper").read_text().split() == ["10", "20"]


NUMBER, TIME = "column x: expected a finite number, given", "column time: expected an integer, or"
SRC, DST = (f"column {end}: expected an id of the node table, given" for end in ("src", "dst"))
WEIGHT = "column weight: expected a positive number, given"
WRONG: dict[str, tuple[str, *tuple[str, ...]]] = {
    "nodes__a": ("", "line 1: expected a header of distinct columns, given nothing"),
    "nodes__b": ("id,id\n1,2\n", "line 1: expected a header of distinct columns, given ['id']"),
    "nodes__c": ("id,label,value\n", "line 1: expected one of label, value, label_0 label_1"),
    "nodes__d": ("id,x\n0,1\n1\n", "line 3: expected 2 columns, given 1"),
    "nodes__e": ("id,x\n0,\udcff1\n", "line 2: cannot be read as CSV: Invalid unicode"),
    "nodes__f": ("label,f\n1,2\n", "line 1: column id: expected, but missing in ['label', 'f']"),
    "nodes__g": ("id\na\n\nb\na\n", "line 5: column id: expected a distinct id, given 'a'"),
    "nodes__h": ("id,x\na,1\n,2\n", "line 3: column id: expected a distinct id, given nothing"),
    "nodes__i": ("id,label\na,1\nb,-1\n", "line 3: column label: expected a class (an integer"),
    "nodes__j": ("id,label_0,label_1\na,1,2\n", "line 2: column label_1: expected 0 or 1, given '"),
    "nodes__k": ("id,time\n0,0x10\n", f"line 2: {TIME}"),
    "nodes__l": ("id,time\n0,1.5\n", f"line 2: {TIME}"),
    "nodes__m": ("id,x\na,1\nb,inf\n", f"line 3: {NUMBER} 'inf'"),
    "nodes__n": ("id,x\n0, 1.5\n1,1_0\n2,--\n", f"line 4: {NUMBER} '--'"),
    "nodes__o": ('id,x\na,1\n"d\n\nd",x\n', f"line 5: {NUMBER} 'x'"),
    "nodes__p": ('id,k\na,5" disk\nb,"tape\n', "line 3: cannot be read as CSV: Value with untermi"),
    "nodes__q": ('id,k\na,"x"y\n', "line 2: cannot be read as CSV: Value with unterminated quote"),
    "nodes__r": ("id,k\na,x\r\nb,y\n", "cannot be read as CSV: expected lines that all end alike"),
    "edges__0__a__x": ("src,dst,weight,x\n0,x,x,1\n01,z,1,x\n-1,7,0,1\n", f"line 3: {SRC} '01'",
                       f"line 3: {DST} 'z'", f"line 2: {WEIGHT} 'x'", f"line 3: {NUMBER} 'x'"),
    "edges__0__b__0": ("src,dst\n0,1\n0x1\n", "line 3: expected 2 columns, given 1"),
    "edges__0__c__0": ("src,dst,weight\n-1,1,0\n1,,1\n", f"line 2: {SRC} '-1'",
                       f"line 3: {DST} nothing", f"line 2: {WEIGHT} '0'"),
    "edges__0__d__0": ("src,w\n", "line 1: column dst: expected, but missing in ['src', 'w']"),
    "edges__0__e": ("src,dst\n", "expected 3 names after the first __, given ['0', 'e']"),
    "edges__0__in__v": ("src,dst\n", "expected a table nodes__v.csv, given none"),
}  # fmt: skip
"""Tables, and what is wrong with each."""


def test_all_mistakes_in_csv_are_told_with_their_lines(tmp_path):
    texts = {name: text for name, (text, *_) in WRONG.items()}
    texts |= {"nodes__0": "id\n0\n1\n", "nodes__x": "id\nx\ny\n"}
    folder = write_csv(tmp_path / "tables", texts)
    with open_database(tmp_path / "graph") as database:
        tables = GraphTables("graph", "")
        queries = find_queries(Path(folder), "csv", database, tables.problems)
        read_queries(queries, database, tables, folder, follows=True)
        for table in tables.all.values():
            list(table.features.chunks() if table.features else ())
    for name, (_, *expected) in WRONG.items():
        told = [line for line in tables.problems.values() if f"/{name}.csv: " in line]
        assert all(any(text in line for line in told) for text in expected), (expected, told)
        assert len(told) == len(expected), told
    with pytest.raises(GraphError) as error:
        import_graph("csv", folder, tmp_path / "graph")
    lines = str(error.value).splitlines()
    count = sum(len(expected) for _, *expected in WRONG.values())
    assert (len(lines), lines[0]) == (22, f"{count} problems with the source:")
    assert lines[21] == f"  and {count - 20} more"
    assert {path.name for path in tmp_path.iterdir()} == {"tables"}


def test_mistakes_in_parquet_are_told_with_their_rows(tmp_path):
    good = {"id": ["ann", "bob", "cem"]}
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("nodes__0", {"id": ["ann", "ann", "cem"]}, "row 1: column id: expected a distinct id, "),
        ("nodes__1", {"id": ["ann", None, "cem"]}, "row 1: column id: expected a distinct id, "),
        ("nodes__2", {"name": ["ann", "bob", "cem"]}, "column id: expected, but missing"),
        ("nodes__3", good | {"label": [0.5, 1, 2]}, "column label: expected integers or texts"),
        ("nodes__4", good | {"label": [0, 1, 2], "value": [0, 1, 2]}, "expected one of label, val"),
        ("nodes__5", good | {"town": [b"x", b"y", b"z"]}, "column town: expected numbers, lists o"),
        ("nodes__6", good | {"e": [[1.0], [1, 2], [1]]}, "row 1: column e: expected 1 numbers, as"),
        ("edges__n__a__n", {"src": ["ann"], "dst": ["dora"]}, "row 0: column dst: expected an id "),
        ("edges__n__b__n", {"src": [1.5], "dst": ["ann"]}, "column src: expected ids of type VARC"),
        ("edges__n__c__n", {"src": ["ann"], "dst": ["ann"], "time": [2.5]},
         "row 0: column time: expected an integer, or a date such as 2026-05-31, given 2.5"),
        ("edges__n__d__n", {"src": ["ann"], "dst": ["ann"], "weight": pyarrow.array([None], "f8")},
         "row 0: column weight: expected a positive number, given nothing"),
    ]  # fmt: skip
    tables = {"nodes__n": good, **{name: columns for name, columns, _ in wrong}}
    folder = write_parquet(tmp_path / "tables", tables)
    with pytest.raises(GraphError) as error:
        import_graph("parquet", folder, tmp_path / "graph")
    lines = str(error.value).splitlines()
    assert lines[0] == f"{len(wrong)} problems with the source:"
    for name, _, text in wrong:
        (line,) = [line for line in lines if f"{name}.parquet" in line]
        assert text in line


def test_refused_folders(tmp_path):
    with pytest.raises(GraphError, match="nowhere: not a directory"):
        import_graph("csv", str(tmp_path / "nowhere"), tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(GraphError, match=r"expected nodes\.csv or nodes__<type>\.csv, given neith"):
        import_graph("csv", str(tmp_path / "empty"), tmp_path / "out")
    folder = write_csv(tmp_path / "two", LIBRARY | {"nodes__author": "id,split\n0,train\n1,\n"})
    with pytest.raises(GraphError, match=r"target: expected splits .*RELATION.* given author, pap"):
        import_graph("csv", folder, tmp_path / "out")
    folder = write_parquet(tmp_path / "tables", {"nodes": {"id": [0]}})
    (tmp_path / "tables/nodes.parquet").write_bytes(b"PAR1junkPAR1")
    with pytest.raises(GraphError, match=r"nodes\.parquet: cannot be read"):
        import_graph("parquet", folder, tmp_path / "out")


def test_flipped_bits_of_parquet_end_in_one_error_or_in_a_graph(tmp_path):
    """The file is read in this process, which must survive, and again when it is encoded."""
    draw, ids = np.random.default_rng(3), [f"n{number}" for number in range(400)]
    numbers = np.arange(800.0).reshape(400, 2)
    tables = {"nodes": {"id": ids, "label": ["a", "b"] * 200, "v": list(numbers)}}
    folder = write_parquet(tmp_path / "tables", tables | {"edges": {"src": ids, "dst": ids[::-1]}})
    for number in range(12):
        file = tmp_path / "tables" / ("nodes.parquet" if number % 2 else "edges.parquet")
        content = file.read_bytes()
        damaged = np.frombuffer(content, np.uint8).copy()
        places = draw.integers(0, damaged.size, (1, 3, 20)[number % 3])
        damaged[places] ^= np.uint8(1 << draw.integers(8))
        file.write_bytes(damaged.tobytes())
        out = tmp_path / f"graph-{number}"
        with suppress(GraphError, RequestError):
            import_graph("parquet", folder, out)
            GraphDirectory.open(out)
        file.write_bytes(content)
    assert not list(tmp_path.glob(".graph*"))


def test_mistakes_of_tables_labels_and_features_are_told_together(tmp_path):
    nodes = "id,label,split,x,y,when\nn0,1,train,1,,2024\nn1,,train,one,2,2024-01-02\n"
    edges = "src,dst,weight\nn0,n9,1\nn9,n1,0\n"
    folder = write_csv(tmp_path / "tables", {"nodes__a": nodes, "edges__a__to__a": edges})
    with pytest.raises(GraphError) as error:
        import_graph("csv", folder, tmp_path / "graph")
    expected = [
        "7 problems with the source:",
        f"edges__a__to__a.csv: line 3: {WEIGHT} '0'",
        f"edges__a__to__a.csv: line 3: {SRC} 'n9'",
        f"edges__a__to__a.csv: line 2: {DST} 'n9'",
        "labels of a: expected one for all that is trained on, but 1 of 2 nodes of the split train "
        "have none (n1): leave them out of the split, or let --unlabelled-as-missing do it",
        f"nodes__a.csv: line 3: {NUMBER} 'one'",
        "nodes__a.csv: line 3: column when: expected a finite number, given '2024-01-02'",
        "features of a: row 0, column y: expected a finite number, given nan (one of 1)",
    ]
    for line, text in zip(str(error.value).splitlines(), expected, strict=True):
        assert text in line


def test_what_has_no_label_is_refused_or_left_out_of_training(tmp_path):
    nodes = "id,label,split\na,x,train\nb,,train\nc,,test\n"
    folder = write_csv(tmp_path / "tables", {"nodes": nodes, "edges": "src,dst\n"})
    check_refused("csv", folder, r"1 of 2 nodes .* have none \(b\): .*-as-missing do it")
    other = write_csv(tmp_path / "other", {"nodes": "id,split\na,b c\n", "edges": "src,dst\n"})
    with pytest.raises(GraphError, match=r"split: expected a name of letters, .*, given 'b c'"):
        import_graph("csv", other, tmp_path / "graph")
    command = ["dataset", "import", "csv", folder, "--out", str(tmp_path / "graph")]
    assert main([*command, "--unlabelled-as-missing"]) == 0
    graph = GraphDirectory.open(tmp_path / "graph")
    assert (graph.split("train").tolist(), graph.split("test").tolist()) == ([0], [2])


QUOTES: list[tuple[str, list[str]]] = [
    ('a,5" disk\nb,tape\n', ['5" disk', "tape"]),
    ('a,5" disk\nb,6" disk\n', ['5" disk', '6" disk']),
    ('"a",5" disk\n"b","a ""tape"", long"', ['5" disk', 'a "tape", long']),
    ('a,"two\nlines"\nb,""\n', ["two\nlines"]),
]


def test_quotes(tmp_path):
    """One quote within a value is part of it, as two are."""
    headers = ["id,kind\n", '\ufeff"id","kind"\n']
    tables = {
        f"nodes__{number}-{place}": header + rows
        for number, header in enumerate(headers)
        for place, (rows, _) in enumerate(QUOTES)
    }
    folder = write_csv(tmp_path / "tables", tables | {"edges__0-0__to__0-0": "src,dst\n"})
    import_graph("csv", folder, tmp_path / "graph", ImportOptions(targets=("to",)))
    kinds = GraphDirectory.open(tmp_path / "graph").schema.node_types
    for name, kind in kinds.items():
        assert [list(of.categories) for of in kind.columns] == [QUOTES[int(name[-1])][1]]


@pytest.mark.parametrize("named", ["neither", "sources", "both"])
def test_the_edges_of_a_table_are_those_of_an_array(named, tmp_path, monkeypatch):
    """The table has parallel edges, spans several batches, and its ids may need a join."""
    monkeypatch.setattr("hopper.graph.importers.database._BATCH", 1000)
    draw, count = np.random.default_rng(1), 5000
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


def test_edges_that_do_not_fit_memory_are_sorted_on_disk(tmp_path):
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


def test_too_much_memory_or_disk_is_refused_before_the_work(tmp_path, monkeypatch):
    tables = {"nodes": "id,label\n0,1\n1,0\n", "edges": "src,dst\n0,1\n"}
    folder, out = write_csv(tmp_path / "tables", tables), tmp_path / "graph"

    def check_refused(text: str, **options: Any) -> None:
        with pytest.raises(RequestError, match=text):
            import_graph("csv", folder, out, ImportOptions(**options))
        assert [path.name for path in tmp_path.iterdir()] == ["tables"]

    check_refused(r"--memory-limit: expected at least \d+M, given 100M", memory_limit=100 << 20)
    with pytest.raises(
        RequestError, match="--memory-limit: expected an import of csv, parquet or sql"
    ):
        import_graph("npy", folder, out, ImportOptions(memory_limit=4 << 30))
    leaves, disk = "needs about .* of which --memory-limit leaves", "too little disk space: about"
    for module, name, option, text in (
        (table_folder, "_DISK", "", rf"{disk} [\d.]+ GiB needed for the graph"),
        (write_graph, "_SYMMETRIZED", "symmetrize", f"--symmetrize: {leaves}"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, 2**60)
            check_refused(text, **({option: True} if option else {}))
    # Whatever this process has taken by now.
    with open_database(out, 1 << 40) as database:
        database.memory = 1 << 30
        with database.reserve(200 << 20, "edges"):
            pass
        with pytest.raises(RequestError, match=r"edges: needs about 2\.\d+ GiB of memory, of whic"):
            database.reserve(2 << 30, "edges").__enter__()


def test_a_column_of_a_parquet_file_may_be_larger_than_the_databases_memory(tmp_path):
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


def test_memory_of_tables_is_given_back(tmp_path):
    with open_database(tmp_path / "graph", 4 << 30) as database:
        used = "SELECT sum(memory_usage_bytes)::BIGINT FROM duckdb_memory()"
        numbers = "SELECT range AS a, range AS b, range AS c FROM range(12_000_000)"
        database.fetch(f"CREATE TABLE numbers AS {numbers}")
        assert database.fetch(used)[0][0] > 140 << 20
        database.release()
        assert database.fetch(used)[0][0] <= 128 << 20
        assert database.fetch("SELECT max(b) FROM numbers") == [(11_999_999,)]


def test_the_command_prints_what_it_needs_and_its_progress(tmp_path, capfd, monkeypatch):
    """Files of a killed import go."""
    monkeypatch.setattr("hopper.cli.phases._SHOWN_SECONDS", 0.0)
    (tmp_path / ".graph.unfinished-abcdefgh").mkdir()
    tables = {"nodes": {"id": ["a", "b"]}, "edges": {"src": ["b", "a"], "dst": ["a", "a"]}}
    folder, out = write_parquet(tmp_path / "tables", tables), tmp_path / "graph"
    request = ["dataset", "import", "parquet", folder, "--out", str(out)]
    assert main([*request, "--memory-limit", "4G"]) == 0
    printed = capfd.readouterr()
    lines = printed.err.splitlines()
    assert lines[0].startswith("memory: at most 4.00 GiB (--memory-limit); disk: about ")
    assert [line.rsplit(":", 1)[0] for line in lines[1:]] == [
        "node",
        f"{EDGES}",
        f"{EDGES}: ids to numbers",
        f"edges of {EDGES}: in order",
    ]
    assert printed.out == f"{out}: tables: 2 nodes, 2 edges\n"
    assert {path.name for path in tmp_path.iterdir()} == {"tables", "graph"}
    np.testing.assert_array_equal(GraphDirectory.open(out).topology(EDGES).indices, [0, 1])
