"""Importing tables within a bound of memory gives the same graph as without one."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pyarrow
import pytest

from hopper.cli import main
from hopper.errors import GraphError, RequestError
from hopper.graph import GraphDirectory, Relation
from hopper.graph.array_file import create_array, open_array, release_pages, save_array
from hopper.graph.build_topology import build_topology
from hopper.graph.importers import ImportOptions, csv_tables, estimate, import_graph
from hopper.graph.importers.spool import Spool, TextSpool
from hopper.graph.importers.table_engine import TableEngine
from hopper.graph.importers.workspace import open_workspace
from hopper.graph.layout import TOPOLOGY_ARRAYS

EDGES = Relation("node", "edge", "node")


def write_csv_tables(folder: Path, **tables: str) -> str:
    folder.mkdir(exist_ok=True)
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return str(folder)


def make_csv(header: str, *columns: list[object]) -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in zip(*columns, strict=True))])


@pytest.mark.parametrize("named", ["neither", "sources", "both"])
def test_the_edges_of_a_table_are_those_of_an_array(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has parallel edges, spans several batches, and its ids may need a join."""
    monkeypatch.setattr(csv_tables, "BATCH_ROWS", 700)
    draw = np.random.default_rng(1)
    src, dst = draw.integers(0, 90, 5000), draw.integers(0, 40, 5000)
    # Those that are not named begin like numbers of rows.
    sources = [f"n{i}" if named != "neither" else i for i in draw.permutation(90)]
    targets = [*range(30), *(f"t{i}" if named == "both" else i for i in range(30, 40))]
    if named == "neither":
        sources = list(range(90))
    folder = write_csv_tables(
        tmp_path / "tables",
        nodes__a=make_csv("id", sources),
        nodes__b=make_csv("id,label", targets, [0] * 40),
        edges__a__to__b=make_csv(
            "src,dst,weight", [sources[i] for i in src], [targets[i] for i in dst], range(1, 5001)
        ),
    )
    import_graph("csv", folder, tmp_path / "graph")
    graph, relation = GraphDirectory.open(tmp_path / "graph"), Relation("a", "to", "b")
    expected = build_topology(src, dst, 90, 40)
    for array in TOPOLOGY_ARRAYS:
        actual = getattr(graph.topology(relation), array)
        np.testing.assert_array_equal(actual, getattr(expected, array), err_msg=array)
    np.testing.assert_array_equal(graph.edge_weights(relation), np.arange(1, 5001))
    for node_type, ids in (("a", sources), ("b", targets)):
        file = tmp_path / "graph" / "names" / f"{node_type}.txt"
        names = file.read_text().split() if file.exists() else None
        assert names == (None if ids == list(range(len(ids))) else [str(id_) for id_ in ids])


def test_edges_that_do_not_fit_memory_are_sorted_on_disk(tmp_path: Path) -> None:
    draw, edges = np.random.default_rng(2), 3_000_000
    src = draw.integers(0, 1000, edges).astype(np.int32)
    dst = draw.integers(0, 1000, edges).astype(np.int32)
    engine, spilled_bytes, blocks = TableEngine(tmp_path, 40 << 20), 0, []
    for block in engine.sort_edges(src, dst, "edges"):
        spilled_bytes = max(
            spilled_bytes, sum(file.stat().st_size for file in (tmp_path / "engine").iterdir())
        )
        blocks.append(block)
    engine.close()
    assert spilled_bytes > 10 << 20
    columns = [np.concatenate(parts) for parts in zip(*blocks, strict=True)]
    order = np.lexsort((np.arange(edges), src, dst))
    for array, expected in zip(columns, (src[order], dst[order], order), strict=True):
        np.testing.assert_array_equal(array, expected)


BAD = [
    ("id\n0\n1\n", "src,dst\n0,01\n", r"line 2: column dst: expected an id of .* given '01'"),
    ("id\n0\n1\n", "src,dst\n0,0x1\n", r"line 2: column dst: expected an id of .* given '0x1'"),
    ("id\n0\n1\n", "src,dst\n0,1\n-1,0\n", r"line 3: column src: expected an id of .* given '-1'"),
    ("id\na\n\nb\n", "src,dst\na,\n", r"line 2: column dst: expected an id of .* given ''"),
    ("id\na\nb\na\n", "src,dst\n", r"line 4: column id: expected a distinct id, given 'a'"),
    ('id,x\n0,1\n1,"2\n', "src,dst\n", r"nodes\.csv: cannot be read as CSV"),
    ("id,time\n0,0x10\n", "src,dst\n", r"line 2: column time: expected an integer, or a date"),
    ("id,x\n0, 1.5\n1,1_0\n2,--\n", "src,dst\n", r"line 4: column x: expected a number"),
]


@pytest.mark.parametrize(("nodes", "edges", "text"), BAD)
def test_the_line_at_fault_is_named(nodes: str, edges: str, text: str, tmp_path: Path) -> None:
    folder = write_csv_tables(tmp_path / "tables", nodes=nodes, edges=edges)
    with pytest.raises(GraphError, match=text):
        import_graph("csv", folder, tmp_path / "graph")
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]


def test_all_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    wrong: dict[str, str] = {
        "nodes__a": "id,label,split,x,y,when\nn0,1,train,1,,2024\nn1,,train,one,2,2024-01-02\n",
        "nodes__b": "name,x\nb,1\n",
        "edges__a__to__a": "src,dst,weight\nn0,n9,1\nn9,n1,0\n",
        "edges__a__in__b": "src,dst,time\nn0,b,soon\n",
        "edges__a__in__c": "src,dst\n",
    }
    folder = write_csv_tables(tmp_path / "tables", **wrong)
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
        "nodes__a.csv: line 3: column x: expected a number, given 'one'",
        "nodes__a.csv: line 3: column when: expected a number, given '2024-01-02'",
        "features of a: row 0, column y: expected a finite number, given nan (one of 1)",
    ]
    for line, text in zip(lines, expected, strict=True):
        assert text in line
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]


def test_only_the_first_of_many_problems_are_told(tmp_path: Path) -> None:
    # These are found when features are written.
    names = [f"x{number}" for number in range(25)]
    nodes = make_csv(",".join(["id", *names]), [0, 1], *[["1", "one"]] * 25)
    folder = write_csv_tables(tmp_path / "tables", nodes=nodes, edges="src,dst\n")
    with pytest.raises(GraphError) as error:
        import_graph("csv", folder, tmp_path / "graph")
    lines = str(error.value).splitlines()
    assert len(lines) == 22
    assert lines[0] == "25 problems with the source:"
    assert "column x19: expected a number" in lines[20]
    assert lines[21] == "  and 5 more"
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]


def test_what_has_no_label_is_refused_or_left_out_of_training(tmp_path: Path) -> None:
    nodes = "id,label,split\na,x,train\nb,,train\nc,,test\n"
    folder = write_csv_tables(tmp_path / "tables", nodes=nodes, edges="src,dst\n")
    with pytest.raises(GraphError, match=r"1 of 2 nodes .* have none \(b\): .*-as-missing do it"):
        import_graph("csv", folder, tmp_path / "graph")
    command = ["dataset", "import", "csv", folder, "--out", str(tmp_path / "graph")]
    assert main([*command, "--unlabelled-as-missing"]) == 0
    graph = GraphDirectory.open(tmp_path / "graph")
    assert (graph.split("train").tolist(), graph.split("test").tolist()) == ([0], [2])


QUOTES = [
    'a,5" disk\nb,tape\n',
    '"a",5" disk\n"b","a ""tape"", long"',
    'a,"5"" disk"\r\nb,""\r\n',
    'a,5" disk\nb,"tape\n',
    'a,"a tape\nb,"disk"\n',
    'a,x\nb,"',
]


@pytest.mark.parametrize("rows", QUOTES)
@pytest.mark.parametrize("begin", ["id,kind\n", '\ufeff"id","kind"\r\n'])
def test_quotes_are_read_as_python_reads_them(
    rows: str, begin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_tables, "_BLOCK", 24)  # so that quotes are followed over blocks
    folder = write_csv_tables(tmp_path / "tables", nodes=begin + rows, edges="src,dst\n")
    try:
        expected = list(csv.DictReader(io.StringIO((begin + rows).lstrip("\ufeff")), strict=True))
    except csv.Error:
        with pytest.raises(GraphError, match=r"nodes\.csv: cannot be read as CSV"):
            import_graph("csv", folder, tmp_path / "graph")
        return
    import_graph("csv", folder, tmp_path / "graph")
    (column,) = GraphDirectory.open(tmp_path / "graph").schema.node_types["node"].columns
    assert list(column.categories) == sorted({row["kind"] for row in expected if row["kind"]})


def test_numbers_are_read_as_python_reads_them(tmp_path: Path) -> None:
    nodes = "id,x,value\n0, 1.5,\n1,1_0,+2\n2,,1e-3\n"
    folder = write_csv_tables(tmp_path / "tables", nodes=nodes, edges="src,dst\n0,1\n")
    import_graph("csv", folder, tmp_path / "graph", ImportOptions(missing="zero"))
    graph = GraphDirectory.open(tmp_path / "graph")
    assert graph.features("node")[:, 0].tolist() == [1.5, 10, 0]
    np.testing.assert_array_equal(graph.labels("node"), np.array([np.nan, 2, 1e-3], np.float32))


def test_too_much_memory_or_disk_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_csv_tables(
        tmp_path / "tables", nodes="id,label\n0,1\n1,0\n", edges="src,dst\n0,1\n"
    )
    out = tmp_path / "graph"

    def check_refused(text: str, **options: object) -> None:
        with pytest.raises(RequestError, match=text):
            import_graph("csv", folder, out, ImportOptions(**options))  # type: ignore[arg-type]
        assert [path.name for path in tmp_path.iterdir()] == ["tables"]

    check_refused(r"--memory-limit: expected at least \d+M, given 100M", memory_limit=100 << 20)
    with pytest.raises(RequestError, match="--memory-limit: expected an import of csv or parquet"):
        import_graph("npy", folder, out, ImportOptions(memory_limit=4 << 30))
    with monkeypatch.context() as patched:
        patched.setattr(estimate, "_NODE", 2**60)
        check_refused(
            r"too little disk space: about [\d.]+ GiB needed for the graph and what is spilled"
        )
    with monkeypatch.context() as patched:
        patched.setattr(estimate, "_SYMMETRIZED", 2**60)
        check_refused(
            "--symmetrize: needs about .* of which --memory-limit leaves", symmetrize=True
        )
    with monkeypatch.context() as patched:
        patched.setattr(estimate, "_COMPONENT_NODE", 2**60)
        check_refused("--largest-component: needs about", largest_component=True)
    with monkeypatch.context() as patched, open_workspace(out, 2 << 30) as workspace:
        patched.setattr(workspace, "arrays", 1 << 30)  # whatever this process has taken by now
        with workspace.reserve(200 << 20, "edges"):
            pass
        with pytest.raises(
            RequestError, match=r"edges: needs about 2\.\d+ GiB of memory, of which"
        ):
            workspace.reserve(2 << 30, "edges").__enter__()


def test_the_command_prints_what_it_needs_and_its_progress(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress of the process that reads Parquet is shown, and files of a killed import go."""
    from pyarrow import parquet

    tables, left_by_killed_import = tmp_path / "tables", tmp_path / ".graph.unfinished-abcdefgh"
    tables.mkdir()
    left_by_killed_import.mkdir()
    parquet.write_table(pyarrow.table({"id": ["a", "b"]}), tables / "nodes.parquet")
    edges = pyarrow.table({"src": ["b", "a"], "dst": ["a", "a"]})
    parquet.write_table(edges, tables / "edges.parquet")
    out = tmp_path / "graph"
    request = ["dataset", "import", "parquet", str(tables), "--out", str(out)]
    assert main([*request, "--memory-limit", "1G"]) == 0
    printed = capfd.readouterr()
    lines = printed.err.splitlines()
    assert lines[0].startswith("memory: at most 1.00 GiB (--memory-limit); disk: about ")
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


def test_spooled_columns_are_read_back_unchanged(tmp_path: Path) -> None:
    table, texts = Spool(tmp_path, np.float32, 3), TextSpool(tmp_path)
    assert table.finish().shape == (0, 3)
    rows = np.random.default_rng(0).random((200_000, 3)).astype(np.float32)
    table = Spool(tmp_path, np.float32, 3)
    for start in range(0, 200_000, 7_000):
        table.append(rows[start : start + 7_000])
    np.testing.assert_array_equal(table.finish(), rows)
    assert list(tmp_path.iterdir()) == []
    expected = ["", "ä", "two\nlines", *map(str, range(100_000))]
    for start in range(0, len(expected), 30_000):
        texts.append(pyarrow.array(["left out", *expected[start : start + 30_000]])[1:])
    read_texts = texts.finish()
    assert (len(read_texts), read_texts[1], read_texts[-1], read_texts[1:3]) == (
        100_003,
        "ä",
        "99999",
        expected[1:3],
    )
    assert list(read_texts) == expected
