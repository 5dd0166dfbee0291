"""The description of a graph, as values and as the command prints it; the other commands."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from hopper.cli import main
from hopper.cli.inspect.graph import format_bytes, print_description
from hopper.graph import GraphDirectory, Labels
from hopper.graph.describe import describe, summarize_degrees, summarize_labels
from tests.graph.conftest import APPEARS, CITES, REVIEWS, replaced


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

    assert json.loads(run("inspect", "graph", library, "--json")) == describe(
        GraphDirectory.open(library)
    )
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
    printed = run(
        "dataset", "make", "arxiv-like", "--out", tmp_path / "a", "--scale", 0.005, "--seed", 3
    )
    assert printed.startswith(f"{tmp_path / 'a'}: arxiv-like: 847 nodes, ")
