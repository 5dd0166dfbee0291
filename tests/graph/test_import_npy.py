"""Folders of NumPy arrays: options, real graphs, and damaged or malicious files, which are refused
in one line and leave nothing."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from hopper.cli import main
from hopper.errors import RequestError
from hopper.graph import GraphDirectory, Relation
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph, tables
from hopper.graph.layout import TOPOLOGY_ARRAYS

META: dict[str, Any] = {
    "name": "small",
    "source": "made up",
    "node_types": {
        "paper": {"count": 6, "feat_file": "feat__paper.npy"},
        "author": {"count": 4, "feat_file": "feat__author.npz"},
    },
    "edge_types": [
        {"src": "author", "rel": "is by#", "dst": "paper", "file": "edges.npy", "count": 7}
    ],
    "target_type": "paper",
    "num_classes": 3,
    "labels": {"paper": "label.npy"},
    "splits": {"train": {"file": "train.npy"}, "val": {"file": "val.npy"}},
}
EDGE = META["edge_types"][0]
Importer = Callable[[], str]


@pytest.fixture
def source(tmp_path) -> Path:
    """A folder that can be imported."""
    folder = tmp_path / "source"
    folder.mkdir()
    write_meta(folder, META)
    generator = np.random.default_rng(2)
    np.save(folder / "feat__paper.npy", generator.standard_normal((6, 5), dtype=np.float32))
    dense = generator.integers(0, 2, (4, 9)).astype(np.float32)
    sparse.save_npz(folder / "feat__author.npz", sparse.csr_matrix(dense))
    np.save(folder / "edges.npy", np.array([[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4, 5, 0]]))
    np.save(folder / "label.npy", np.array([0, 1, 2, 0, 1, 2]))
    np.save(folder / "train.npy", np.array([0, 1, 2]))
    np.save(folder / "val.npy", np.array([3, 4]))
    return folder


def write_meta(folder: Path, content: dict[str, Any] | bytes) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (folder / "meta.json").write_bytes(data)


@pytest.fixture
def try_import(source, tmp_path, capsys) -> Importer:
    """Return a function that imports the folder, and returns the line that refuses it, or "" if a
    graph can be opened afterwards; nothing is left either way."""

    def try_to_import() -> str:
        files_before, out = sorted(tmp_path.iterdir()), tmp_path / "out"
        code = main(["dataset", "import", "npy", str(source), "--out", str(out)])
        error = capsys.readouterr().err
        assert code == 0 or (code == 1 and error.startswith("error: "))
        assert error.count("\n") == code, error
        if code == 0:
            GraphDirectory.open(out)
            shutil.rmtree(out)
        assert sorted(tmp_path.iterdir()) == files_before
        return error

    return try_to_import


def paths_of_values(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Iterate over the paths to every value of a JSON document."""
    yield path
    if isinstance(value, dict | list):
        children = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in children:
            yield from paths_of_values(child, (*path, key))


WRONG: list[Any] = [None, True, -1, 1.5, "x", "", [], {}, 10**30, [[[]]], "\0", "../../etc"]


def test_wrong_values_anywhere_in_meta_are_refused_or_change_nothing(source, try_import):
    """At each place of the document stands one of the bad values, at the next another."""
    for number, path in enumerate(list(paths_of_values(META))[1:]):
        for bad_value in WRONG[number % len(WRONG) :: len(WRONG)]:
            meta = json.loads(json.dumps(META))
            holder = meta
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = bad_value
            write_meta(source, meta)
            try_import()


BAD_META: list[tuple[dict[str, Any] | bytes, str]] = [
    (b"", "not valid JSON"),
    (b"[]", "meta.json: expected a JSON object, found list"),
    ({"target_type": None}, "meta.json: target_type: expected str, given None"),
    ({"target_type": "pet"}, "target: expected one of the node types"),
    ({"node_types": {"paper": {}}}, "node_types.paper: count: missing field"),
    ({"node_types": {"paper": {"count": -1}}}, "expected a count in [0, 2**48], given -1"),
    (
        {"node_types": {"a b": {"count": 1}, "a#b": {"count": 1}}},
        "meta.json: node type 'a#b': is 'a_b' as part of a path, twice",
    ),
    ({"edge_types": [{"src": "paper"}]}, "edge_types[0]: rel: missing field"),
    ({"edge_types": [EDGE, EDGE | {"rel": "is by/"}]}, "given author/is_by_/paper twice"),
    ({"edge_types": [EDGE | {"count": 9}]}, "expected 9 edges, as meta.json says, given 7"),
    ({"splits": {"train": {"file": "none.npy"}}}, "none.npy: split train: missing file"),
    *(
        ({"labels": {"paper": name}}, "labels.paper: expected a file inside")
        for name in ("../secret.npy", "/etc/passwd", "link.npy")
    ),
]


def test_damaged_meta_is_refused(source, try_import):
    np.save(source.parent / "secret.npy", np.arange(6) % 3)
    (source / "link.npy").symlink_to(source.parent / "secret.npy")
    for content, text in BAD_META:
        write_meta(source, content if isinstance(content, bytes) else META | content)
        assert text in try_import()
    (source / "meta.json").unlink()
    assert "meta.json: missing file" in try_import()


FEATURES, ONES = "feat__paper.npy", np.ones((6, 5))
BEYOND = np.array([[0, 1, 2, 3, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6]])
OF_EDGES = "edges of author/is_by_/paper"
ARRAYS: list[tuple[str, Any, str]] = [
    ("train.npy", np.array([0, 10**12]), "split train: expected ids"),
    ("train.npy", np.array([0.0, 1.0]), "split train: expected integers"),
    ("train.npy", np.array([1, 1]), "split train"),
    ("train.npy", np.array(3), "split train: expected integers of shape"),
    ("edges.npy", BEYOND, f"{OF_EDGES}: dst of edge 6: expected an id of paper in [0, 6), given 6"),
    ("edges.npy", np.zeros((2, 7)), f"{OF_EDGES}: expected integers of shape [2, edges], sources"),
    ("label.npy", np.array([0, 1, 9, 0, 1, 2]), "labels of paper"),
    ("label.npy", np.zeros(6, "M8[s]"), "expected integer or float labels"),
    ("label.npy", np.zeros(5, np.int64), "labels of paper: expected 6, one for each node, given 5"),
    (FEATURES, ONES * np.nan, "row 0, column 0: expected a finite number, given nan (one of 30)"),
    (FEATURES, ONES * 1e300, "given inf"),
    (FEATURES, ONES.astype(complex), "given complex128"),
    (FEATURES, np.full((6, 5), "a"), "expected numbers, given <U1"),
    (FEATURES, np.ones((7, 5)), "of paper: expected 6 rows, given 7"),
    (FEATURES, np.ones((6, 5, 1)), "expected shape [n, d]"),
    ("label.npy", np.array([{}] * 6), "label.npy: labels of paper: not a readable .npy file: Obje"),
    ("label.npy", b"PK", "expected one .npy array, given an archive of several"),
    (FEATURES, b"no", "feat__paper.npy: features of paper: not a readable .npy file"),
    ("feat__author.npz", b"no", "feat__author.npz: features of author: not a SciPy sparse matrix"),
    *((name, "pipe", "expected a file") for name in ("edges.npy", "feat__author.npz", "meta.json")),
    *(
        ("feat__author.npz", {name: change}, text)
        for name, change, text in (
            ("indices", lambda a: a + 10**6, "indices must be < 9"),
            ("indptr", lambda a: a * 1000, "not a SciPy sparse matrix"),
            ("shape", lambda a: np.array([-1, 5]), "not a SciPy sparse matrix"),
            # No disk could hold a matrix of that width.
            ("shape", lambda a: np.array([4, 2**62]), "error: "),
            ("data", lambda a: a[:-1], "not a SciPy sparse matrix"),
            ("format", lambda a: np.array("csc"), "not a SciPy sparse matrix"),
        )
    ),
]


def test_files_that_do_not_fit_are_refused(source, try_import):
    for name, content, text in ARRAYS:
        file = source / name
        before = file.read_bytes()
        file.unlink()
        if isinstance(content, bytes):
            file.write_bytes(content)
        elif isinstance(content, str):
            # Nothing ever writes to it.
            os.mkfifo(file)
        elif isinstance(content, dict):
            (source / "before").write_bytes(before)
            with np.load(source / "before") as archive:
                arrays = dict(archive)
            np.savez(file, **(arrays | {name: of(arrays[name]) for name, of in content.items()}))
        else:
            np.save(file, content, allow_pickle=True)
        assert text in try_import()
        file.unlink()
        file.write_bytes(before)
    assert try_import() == ""


def raw(file: str, dtype: str, *shape: int) -> dict[str, Any]:
    return {"file": file, "dtype": dtype, "shape": shape}


def test_files_without_a_header_are_as_those_with_one(source, try_import):
    import_graph("npy", str(source), source / "out")
    meta = json.loads(json.dumps(META))
    paper, edge = meta["node_types"]["paper"], meta["edge_types"][0]
    np.load(source / "feat__paper.npy").tofile(source / "feat.raw")
    np.load(source / "edges.npy").T.astype(np.int32).tofile(source / "edges.raw")
    paper["feat_file"], edge["file"] = raw("feat.raw", "f4", 6, 5), raw("edges.raw", "i4", 7, 2)
    write_meta(source, meta)
    import_graph("npy", str(source), source / "again")
    first, again = (GraphDirectory.open(source / name) for name in ("out", "again"))
    np.testing.assert_array_equal(first.features("paper"), again.features("paper"))
    (relation,) = first.schema.relations
    for name in TOPOLOGY_ARRAYS:
        arrays = [getattr(graph.topology(relation), name) for graph in (first, again)]
        np.testing.assert_array_equal(*arrays)
    shutil.rmtree(source / "out")
    for wrong, error in [
        (
            raw("feat.raw", "f8", 6, 5),
            r"expected 240 bytes of float64 of shape \[6, 5\], given 120",
        ),
        (raw("feat.raw", "U1", 6, 5), r"dtype: expected integers or floats, given <U1"),
        (raw("feat.raw", "nothing", 6, 5), r"paper\.feat_file: dtype: .*nothing"),
        (
            raw("feat.raw", "f4", 6, -5),
            r"shape: expected numbers of rows and columns, given \[6, -5",
        ),
        (raw("../feat.raw", "f4", 6, 5), r"expected a file inside"),
        ({"file": "feat.raw"}, r"paper\.feat_file: shape: missing field"),
    ]:
        paper["feat_file"] = wrong
        write_meta(source, meta)
        assert re.search(error, try_import()), error


def test_features_for_which_there_is_no_room_are_refused_at_once(source, try_import):
    """They have the size of IGB's largest, 1.1 TB, of which the disk holds nothing."""
    rows, meta = 269_346_174, json.loads(json.dumps(META))
    with (source / "feat.raw").open("wb") as file:
        file.truncate(rows * 1024 * 4)
    feat = raw("feat.raw", "float32", rows, 1024)
    meta["node_types"]["paper"] = {"count": rows, "feat_file": feat}
    meta["labels"] = {}
    write_meta(source, meta)
    assert "too little disk space: 10" in try_import()


def test_options(source, tmp_path, monkeypatch):
    # One row a chunk, so that the seams between chunks are walked over.
    monkeypatch.setattr(tables, "CHUNK_BYTES", 1)
    rows = np.array([[1, 3], [0, 0], [0, 2], [2, 2]], np.float32)
    sparse.save_npz(source / "feat__author.npz", sparse.csr_matrix(rows))
    np.save(source / "feat__paper.npy", np.ones((6, 4)))
    (source / "meta.json").write_text(json.dumps(META | {"splits": {}}))
    options = ImportOptions(add_reverse="all", split=RandomSplit(0.5, 0.5), row_normalize=True)
    assert import_graph("npy", str(source), tmp_path / "out", options, name="other") == [
        "1 reverse relations added",
        "split drawn with seed 0: 3 train, 3 val, 0 test",
    ]
    graph = GraphDirectory.open(tmp_path / "out")
    assert graph.schema.name == "other"
    assert graph.features("author").tolist() == [[0.25, 0.75], [0, 0], [0, 1], [0.5, 0.5]]
    reverse = graph.topology(Relation("paper", "rev_is_by_", "author"))
    assert reverse.indices.tolist() == [0, 4, 1, 5, 0, 2, 3]
    np.save(source / "feat__paper.npy", -np.ones((6, 4)))
    with pytest.raises(RequestError, match=r"features of paper: .* expected no negative feature"):
        import_graph("npy", str(source), tmp_path / "refused", options)
    with pytest.raises(RequestError, match=r"expected one of npy, ogb, .*, distdgl, given 'json'"):
        import_graph("json", str(source), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()


def test_real_graphs(real_data, tmp_path):
    """With reverses they are as large as HiFuse, Table 2, says; splits of classes are drawn."""
    reverses = ImportOptions(add_reverse="all")
    import_graph("npy", str(real_data / "aifb"), tmp_path / "aifb", reverses)
    schema = GraphDirectory.open(tmp_path / "aifb").schema
    nodes = sum(kind.count for kind in schema.node_types.values())
    edges = sum(kind.count for kind in schema.relations.values())
    assert (nodes, edges, len(schema.relations)) == (7_262, 48_810, 104)
    drawn = ImportOptions(split=RandomSplit.parse("random:20:30"), seed=7)
    import_graph("npy", str(real_data / "amazon_computers"), tmp_path / "amazon", drawn)
    graph = GraphDirectory.open(tmp_path / "amazon")
    labels = graph.labels("node")
    assert np.bincount(labels[graph.split("train")]).tolist() == [20] * 10
    assert np.bincount(labels[graph.split("val")]).tolist() == [30] * 10
    assert graph.schema.splits["test"] == 13_752 - 500
