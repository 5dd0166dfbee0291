"""Opening graph directories, undamaged and damaged in every way that the checks know, and what is
said of them."""

import io
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hopper.cli import main
from hopper.cli.inspect.graph import format_bytes, print_description
from hopper.errors import GraphError
from hopper.graph import GraphDirectory, Labels, Relation
from hopper.graph.describe import describe, summarize_degrees, summarize_labels
from tests.graph.conftest import APPEARS, CITES, REVIEWS, WRITES, WRITTEN_BY, replaced

TOPOLOGY = "topology/paper/linked/paper"


def test_everything_written_is_read_back(library, friends):
    graph = GraphDirectory.open(library)
    cites = graph.topology(CITES)
    assert cites.indptr.tolist() == [0, 3, 4, 5, 5, 5]
    assert cites.indices.tolist() == [1, 3, 3, 0, 2]
    assert cites.edge_ids.tolist() == [1, 0, 2, 4, 3]
    assert {cites.indices.dtype, cites.edge_ids.dtype} == {np.dtype(np.int32)}
    assert cites.in_degrees.tolist() == [3, 1, 1, 0, 0]
    assert cites.out_degrees.tolist() == [1, 1, 1, 2, 0]
    assert graph.topology(WRITES).indices.tolist() == [1, 0, 2]
    assert graph.topology(WRITTEN_BY).indices.tolist() == [1, 0, 1]
    assert graph.features("paper")[4].tolist() == [12, 13, 14]
    assert graph.features("author").dtype == np.float16
    assert graph.features(WRITES).tolist() == [[20, 1], [0, 1], [10, 0]]
    assert graph.labels("paper").tolist() == [0, 2, -1, 1, 2]
    assert graph.labels("author").tolist() == [[1, 0], [1, 1], [0, 0], [0, 1]]
    assert graph.split("train").tolist() == [0, 4]
    for array in (graph.features("paper"), graph.labels("venue"), cites.indices):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    # An empty type, empty relations and an empty split.
    assert (graph.features("venue").shape, graph.labels("venue").shape) == ((0, 7), (0,))
    assert graph.topology(APPEARS).indptr.tolist() == [0]
    assert graph.topology(APPEARS).out_degrees.tolist() == [0] * 5
    assert graph.topology(REVIEWS).indptr.tolist() == [0] * 6
    assert graph.split("val").size == 0
    # Splits of edges, and labels of floats.
    graph = GraphDirectory.open(friends)
    assert graph.schema.target == Relation("person", "knows", "person")
    assert graph.split("train").tolist() == [0, 1, 3]
    assert graph.links("train").src.tolist() == [0, 1, 2]
    assert graph.links("train").dst.tolist() == [1, 2, 0]
    assert (graph.labels("person").dtype, graph.labels("person").shape) == (np.float32, (3, 2))


def test_unknown_parts_are_named(library):
    graph = GraphDirectory.open(library, check="shapes")
    for read, part, text in (
        (graph.features, "editor", "node type 'editor' has no features"),
        (graph.labels, "editor", "node type 'editor' has no labels"),
        (graph.features, CITES, "'paper/linked/paper' has no features"),
        (graph.topology, ("a", "hosts", "b"), "no relation a/hosts/b"),
        (graph.split, "dev", "split 'dev': expected one of"),
        (graph.links, "train", "nodes of paper are predicted, not links"),
    ):
        with pytest.raises(GraphError, match=text):
            read(part)  # type: ignore[operator]


# File, places of changed values, new values, error.
BAD_VALUES: list[tuple[str, Any, Any, str]] = [
    ("indptr", 0, 1, "indptr of paper/linked/paper: at 0: expected to start"),
    ("indptr", 2, 2, "at 2: expected to start at 0, never to fall"),
    ("indptr", [3, 4, 5], 4, "number of edges, 5, given 4"),
    ("indices", 1, 5, "at 1: expected an id in [0, 5), given 5"),
    ("indices", 0, 4, "at 1: expected in-neighbours ascending by (source id, edge id), given"),
    ("edge_ids", [1, 2], [2, 0], "at 2: expected in-neighbours ascending"),
    ("edge_ids", 4, 5, "at 4: expected an id in [0, 5), given 5"),
    ("edge_ids", 4, 0, "at 4: expected every edge id once, given 0 twice"),
    ("in_degrees", 1, 2, "of node 1: expected 1, as indptr says, given 2"),
    ("out_degrees", 3, 1, "of node 3: expected 2, as indices says, given 1"),
    ("labels/paper", 1, 3, "of node 1: expected -1 or a class in [0, 3), given 3"),
    ("labels/author", 2, [0, 2], "of node 2: expected 0 or 1, given 2"),
    ("splits/train", 1, 5, "split train: at 1: expected an id in [0, 5), given 5"),
    ("splits/train", 0, 4, "at 1: expected distinct ids in ascending order, given 4 after 4"),
    ("labels/person", 1, np.inf, "of node 1: expected a finite number"),
    ("splits/test", 0, 4, "split test: at 0: expected an id in [0, 4), given 4"),
]


def test_full_check_finds_bad_values(library, friends):
    for file, places, values, text in BAD_VALUES:
        folder = friends if file in ("labels/person", "splits/test") else library
        path = folder / f"{file if '/' in file else f'{TOPOLOGY}/{file}'}.npy"
        damaged = np.load(path)
        damaged[places] = values
        with replaced(path, damaged):
            GraphDirectory.open(folder, check="shapes")
            with pytest.raises(GraphError, match=re.escape(text)) as error:
                GraphDirectory.open(folder)
        # An unsorted row is a fault of indices and edge_ids together, reported at the first.
        assert path.name in str(error.value) or "ascending" in text


BAD_SHAPES: list[tuple[str, Callable[[Any], Any], str]] = [
    ("features/paper", lambda a: a[:-1], "features of paper: expected shape [5, 3], given [4, 3]"),
    ("features/author", lambda a: a.astype(">f2"), "expected dtype float16, given >f2"),
    ("features/paper", np.asfortranarray, "expected C order"),
    ("edge_features/author/linked/paper", lambda a: a[:, 0], "expected shape [3, 2], given [3]"),
    ("labels/author", lambda a: a[:, 0], "expected shape [4, 2], given [4]"),
    ("splits/test", lambda a: a[:0], "split test: expected shape [1], given [0]"),
    (f"{TOPOLOGY}/indptr", lambda a: a[:-1], "indptr of paper/linked/paper: expected shape [6]"),
    (f"{TOPOLOGY}/indices", lambda a: a.astype("f4"), "dtype int32 or int64, given float32"),
    ("features/paper", lambda a: np.array([{}], dtype=object), "Python objects in dtype"),
]


def test_bad_headers_are_found(library):
    for file, change, text in BAD_SHAPES:
        path = library / f"{file}.npy"
        with replaced(path, change(np.load(path))):
            with pytest.raises(GraphError, match=re.escape(text)) as error:
                GraphDirectory.open(library, check="shapes")
            assert str(error.value).startswith(str(path))


def test_missing_and_unreadable_files(library, tmp_path):
    path, text = library / "features/paper.npy", r"features of paper: not a readable \.npy file"
    for damaged in (path.read_bytes()[:-4], path.read_bytes()[:20], b"", b"not numpy"):
        with replaced(path, damaged), pytest.raises(GraphError, match=text):
            GraphDirectory.open(library, check="shapes")
    for file in ("features/paper", "labels/paper", "splits/val", f"{TOPOLOGY}/edge_ids"):
        moved = (library / f"{file}.npy").rename(tmp_path / "moved")
        with pytest.raises(GraphError, match=f"{file}.npy: .*: missing file"):
            GraphDirectory.open(library, check="shapes")
        moved.rename(library / f"{file}.npy")
    with pytest.raises(GraphError, match="nowhere: not a directory"):
        GraphDirectory.open(tmp_path / "nowhere")
    with pytest.raises(GraphError, match=r"graph\.json: missing file"):
        GraphDirectory.open(tmp_path)
    with pytest.raises(ValueError, match="check: expected 'full' or 'shapes'"):
        GraphDirectory.open(library, check="some")  # type: ignore[arg-type]


# The description of a graph, as values and as the command prints it; the other commands


def test_figures(library, friends):
    description = describe(GraphDirectory.open(library))
    assert description["bytes"] == sum(f.stat().st_size for f in library.rglob("*.*"))
    # Author 3 has no edge of any relation; paper 4 none either.
    without_edges = {n: of["without_edges"] for n, of in description["node_types"].items()}
    assert without_edges == {"author": 0.25, "paper": 0.2, "venue": None}
    names = ("src", "rel", "dst")
    entries = {tuple(entry[name] for name in names): entry for entry in description["relations"]}
    degrees = {"min": 0, "median": 1.0, "mean": 1.0, "p99": pytest.approx(2.92), "max": 3}
    assert entries[CITES]["in_degree"] == degrees | {"zero": 0.4}
    assert entries[CITES]["out_degree"]["zero"] == 0.2
    # indptr and degrees have eight bytes a number, ids of edges four.
    assert entries[CITES]["topology_bytes"] == 5 * 128 + 8 * (6 + 5 + 5) + 4 * 2 * 5
    assert (entries[REVIEWS]["count"], entries[APPEARS]["in_degree"]["max"]) == (0, None)
    labels = {"kind": "class", "classes": 3, "nodes": 5, "labelled": 4, "empty_classes": 0}
    per_class = {"per_class": {"min": 1, "median": 1.0, "max": 2}, "counts": [1, 1, 2]}
    assert description["labels"]["paper"] == labels | per_class
    assert description["labels"]["author"]["counts"] == [2, 2]
    assert description["labels"]["venue"]["mean"] is None
    assert description["splits"]["train"] == {"count": 2, "share": 0.4, "unlabelled": 0}
    text = io.StringIO()
    print_description(description, Console(file=text, width=120))
    for line in (
        "library (",
        "source: made by hand",
        "target: paper",
        "paper 5 3 float32",
        "author 4 2 float16",
        "venue 0 7 float32",
        "author/linked/paper 3 2 float32",
        "paper/linked/paper in 0 1 1 2.92 3 40.0 %",
        "paper class 3 4 (80.0 %) 1 1 2 0",
        "train 2 40.0 % 0",
    ):
        assert line in " ".join(text.getvalue().split())
    # Splits of edges, labels of floats, and many classes.
    description = describe(GraphDirectory.open(friends))
    assert description["target"] == ["person", "knows", "person"]
    labels = description["labels"]["person"]
    assert [labels[key] for key in ("labelled", "min", "mean", "max")] == [2, 0.5, 1.625, 3]
    assert description["splits"]["train"] == {"count": 3, "share": 0.75}
    summary = summarize_labels(Labels("class", 2000), np.array([3, 3, -1]))
    assert (summary["empty_classes"], summary["per_class"]["max"]) == (1999, 2)
    assert "counts" not in summary
    assert set(summarize_degrees(np.array([], np.int64)).values()) == {None}
    texts = [format_bytes(n) for n in (0, 1023, 1536, 2**20, 2**50)]
    assert texts == ["0 B", "1023 B", "1.5 KiB", "1.0 MiB", "1024.0 TiB"]


def test_commands(library, tmp_path, capsys):
    def run(*arguments: object) -> str:
        """Return what a command prints, or its error."""
        code = main([*map(str, arguments)])
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    described = describe(GraphDirectory.open(library))
    assert json.loads(run("inspect", "graph", library, "--json")) == described
    assert "made by hand" in run("inspect", "graph", library, "--check", "shapes")
    with replaced(library / "splits/test.npy", np.array([9])):
        assert "splits/test.npy" in run("inspect", "graph", library)
    out, source = tmp_path / "out", tmp_path / "pairs"
    source.mkdir()
    (source / "nodes.csv").write_text("id,label,f\n0,0,2\n1,0,2\n2,1,0\n3,1,1\n", encoding="utf-8")
    (source / "edges.csv").write_text("src,dst\n0,1\n2,3\n", encoding="utf-8")
    command = ["dataset", "import", "csv", source, "--out", out, "--name", "two"]
    command += ["--row-normalize"]
    assert run(*command, "--symmetrize", "--split", "random:1:1", "--seed", "5").splitlines() == [
        "node/edge/node: 2 reverse edges added, 4 edges in all",
        "split drawn with seed 5: 2 train, 2 val, 0 test",
        f"{out}: two: 4 nodes, 4 edges",
    ]
    assert GraphDirectory.open(out).features("node")[:, 0].tolist() == [1, 1, 0, 1]
    assert "out: already exists and is not empty" in run(*command)
    assert "--split: expected random:TRAIN:VAL" in run(*command, "--split", "half")
    with pytest.raises(SystemExit):
        run("dataset", "import", "xml", source, "--out", out)
    words = "--out", tmp_path / "a", "--scale", 0.005, "--seed", 3
    printed = run("dataset", "make", "arxiv-like", *words)
    assert printed.startswith(f"{tmp_path / 'a'}: arxiv-like: 847 nodes, ")
