"""Building topologies, against a naive sort; the writer: all or nothing, and nothing that
contradicts the schema."""

import dataclasses
import os
import re
import shutil
import tracemalloc
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopper.errors import GraphError, RequestError
from hopper.graph import (
    EdgeType,
    GraphDirectory,
    GraphSchema,
    GraphWriter,
    Labels,
    NodeType,
    Relation,
    build_topology,
    required_bytes,
)
from hopper.graph import names as names_module
from hopper.graph.layout import TOPOLOGY_ARRAYS, label_names_file, topology_arrays
from hopper.graph.names import Names
from hopper.graph.publish import atomic_output_dir

KNOWS, OTHER = Relation("person", "knows", "person"), Relation("a", "b", "c")
SMALL = GraphSchema(
    "small",
    {"person": NodeType(2, 3, "float32")},
    {KNOWS: EdgeType(1, weighted=True, timed=True)},
    "person",
    {"person": Labels("class", 2)},
    {"train": 1},
)


def write_small(writer: GraphWriter) -> None:
    """Write all parts of the small graph: two people who may know each other."""
    writer.topology(KNOWS, np.array([1]), np.array([0]))
    writer.edge_weights(KNOWS, np.array([0.5], np.float32))
    writer.times(KNOWS, np.array([7]))
    writer.features("person")[0] = 7
    writer.labels("person", np.array([1, -1]))
    writer.split("train", np.array([0]))


def write_graph(
    out: Path, *parts: Callable[[GraphWriter], object], schema: GraphSchema = SMALL
) -> None:
    with GraphWriter(out, schema) as writer:
        for part in parts:
            part(writer)


def interrupt(_: object) -> None:
    raise KeyboardInterrupt("stopped")


def test_a_destination_is_new_or_empty(tmp_path):
    (tmp_path / "made").mkdir()
    for out in (tmp_path / "made", tmp_path / "deep" / "graph"):
        write_graph(out, write_small)
        made = {path.name for path in out.parent.iterdir()} - {"deep"}
        assert made == {out.name}
        graph = GraphDirectory.open(out)
        assert graph.features("person").tolist() == [[7, 7, 7], [0, 0, 0]]
        assert (graph.edge_weights(KNOWS).tolist(), graph.times(KNOWS).tolist()) == ([0.5], [7])
        # Bytes on disk are known beforehand.
        arrays = sum(file.stat().st_size for file in out.rglob("*.npy"))
        assert arrays == required_bytes(graph.schema)
    (tmp_path / "made/keep").write_text("mine", encoding="utf-8")
    with pytest.raises(RequestError, match="already exists and is not empty"):
        write_graph(tmp_path)
    with pytest.raises(RequestError, match="keep: already exists and is not a directory"):
        write_graph(tmp_path / "made/keep")
    assert (tmp_path / "made/keep").read_text(encoding="utf-8") == "mine"
    out = tmp_path / "filled meanwhile"
    with pytest.raises(RequestError, match="already exists and is not empty"):
        write_graph(out, write_small, lambda _: (out / "other").mkdir(parents=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", out.name, "made"]
    assert [entry.name for entry in out.iterdir()] == ["other"]


def test_a_published_folder_is_on_the_disk_and_obeys_the_umask(tmp_path, monkeypatch):
    flushed: list[Path] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: flushed.append(Path(f"/proc/self/fd/{file}").readlink())
    )
    before = os.umask(0o027)
    try:
        # Files that other threads make at any moment obey it too.
        monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the process's umask is changed"))
        with atomic_output_dir(tmp_path / "out", 0) as work:
            (work / "a").mkdir()
            (work / "a" / "file").write_text("x")
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert {path.relative_to(work).as_posix() for path in flushed[:-1]} == {".", "a", "a/file"}
    assert flushed[-1] == tmp_path
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750


def test_too_little_disk_space(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 10**6 - 500, 500))
    text = re.escape(f"({required_bytes(SMALL)} bytes) needed, 0.00 GiB (500 bytes) available")
    with pytest.raises(RequestError, match=f"too little disk space: .*{text}"):
        write_graph(tmp_path / "graph")
    assert list(tmp_path.iterdir()) == []


def test_topology_built_elsewhere(tmp_path):
    topology = build_topology(np.array([1]), np.array([0]), 2, 2)
    topology = dataclasses.replace(topology, indices=topology.indices.astype(np.int64))
    with GraphWriter(tmp_path / "graph", SMALL) as writer:
        write_small(writer)
        for name, array, text in (
            ("in_degrees", topology.in_degrees[:1], r"in_degrees of .* of shape \[2\], given"),
            ("indices", np.array([1 + 2**32]), r"indices of .*: expected ids below 2"),
        ):
            with pytest.raises(GraphError, match=text):
                writer.topology_csc(KNOWS, dataclasses.replace(topology, **{name: array}))
        writer.topology_csc(KNOWS, topology)
    indices = GraphDirectory.open(tmp_path / "graph").topology(KNOWS).indices
    assert (indices.tolist(), indices.dtype) == ([1], np.int32)


def test_names_are_kept_beside_the_schema(tmp_path):
    write_graph(tmp_path / "graph", write_small, lambda w: w.names("person", ["Ada", "Bo Ö."]))
    file = tmp_path / "graph/names/person.txt"
    assert file.read_text(encoding="utf-8") == "Ada\nBo Ö.\n"
    names = Names.open(file, 2)
    assert names is not None
    assert names.of(np.array([1, 0, 1])) == ["Bo Ö.", "Ada", "Bo Ö."]
    with pytest.raises(GraphError, match=r"person\.txt: expected 3 lines, given 2"):
        Names.open(file, 3)


def test_names_may_be_larger_than_memory(tmp_path, monkeypatch):
    names = [f"{row:0100d}" for row in range(20_000)]
    ids = np.array([19_999, 0, 255, 256, 512, 10_001])
    monkeypatch.setattr(names_module, "_BYTES_AT_ONCE", 1 << 16)
    tracemalloc.start()
    write_graph(tmp_path / "graph", write_small, lambda w: w.label_names("person", names))
    file = label_names_file(tmp_path / "graph", "person")
    opened = Names.open(file, len(names))
    written = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert opened is not None
    assert opened.of(ids) == [names[row] for row in ids.tolist()]
    # A piece of the file with its lines' places at a time, and a place for each 256 lines.
    assert written[0] < written[1] < file.stat().st_size == 2_020_000


BAD_PARTS: list[tuple[Any, str]] = [
    (lambda w: w.topology(OTHER, np.array([0]), np.array([0])), "topology: the schema has none"),
    (lambda w: w.topology(KNOWS, np.array([0, 1]), np.array([0, 1])), "expected 1 edges, given 2"),
    (lambda w: w.topology(KNOWS, np.array([2]), np.array([0])), "person: src of edge 0: expected"),
    (lambda w: w.features("robot"), "features: the schema has none for 'robot'"),
    (lambda w: w.edge_weights(KNOWS, np.zeros(1, "f4")), "of edge 0: expected a positive, finite"),
    (lambda w: w.times(KNOWS, np.array([1.0])), "expected int64 of shape [1], given float64"),
    (lambda w: w.labels("person", np.array([0, 1], np.int32)), "expected int64 of shape [2], giv"),
    (lambda w: w.labels("person", np.array([0, 2])), "of node 1: expected -1 or a class in [0, 2)"),
    (lambda w: w.split("train", np.array([2])), "split train: at 0: expected an id in [0, 2), giv"),
    (lambda w: w.split("pair", np.array([1, 1])), "at 1: expected distinct ids in ascending order"),
    (lambda w: w.names("person", ["A\nda", "Bo"]), "names of person: row 0: expected one line"),
    (lambda w: w.names("person", ["Ada"]), "names of person: expected one for each of the nodes"),
    (lambda w: None,
     "not written, though in the schema: features of person, labels of person, split of pair, split"
     " of train, times of person/knows/person, topology of person/knows/person, weights of person"),
]  # fmt: skip


def test_contradictions_and_interrupts_leave_nothing_behind(tmp_path):
    for write, text in BAD_PARTS:
        schema = dataclasses.replace(SMALL, splits={"train": 1, "pair": 2})
        with pytest.raises(GraphError, match=re.escape(text)):
            write_graph(tmp_path / "graph", write, schema=schema)
        assert list(tmp_path.iterdir()) == []
    schema = dataclasses.replace(SMALL, target="robot")
    with pytest.raises(GraphError, match=r"graph\.json: target: expected one of the node types"):
        write_graph(tmp_path / "graph", write_small, schema=schema)
    with pytest.raises(KeyboardInterrupt, match="stopped"):
        write_graph(tmp_path / "graph", interrupt)
    assert list(tmp_path.iterdir()) == []


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=40),
    st.integers(6, 8),
    st.sampled_from([np.int32, np.int64]),
)
def test_equals_a_naive_sort(edges, num_src, dtype):
    """Edge lists have parallel edges and isolated nodes, or no edges at all."""
    src, dst = np.array(edges, dtype).reshape(-1, 2).T.copy()
    num_dst = 6 if edges else 0
    topology = build_topology(src, dst, num_src, num_dst)
    order = sorted(range(src.size), key=lambda edge: (dst[edge], src[edge], edge))
    in_degrees = [int((dst == node).sum()) for node in range(num_dst)]
    assert topology.edge_ids.tolist() == order
    assert topology.indices.tolist() == src[order].tolist()
    assert topology.in_degrees.tolist() == in_degrees
    assert topology.out_degrees.tolist() == [int((src == node).sum()) for node in range(num_src)]
    assert topology.indptr.tolist() == [0, *np.cumsum(in_degrees).tolist()]
    for name in TOPOLOGY_ARRAYS:
        is_narrow = name in ("indices", "edge_ids")
        assert getattr(topology, name).dtype == (np.int32 if is_narrow else np.int64)


def test_large_ids_are_not_truncated():
    # 70000 squared exceeds 32 bits, so a key built from int32 ids would wrap.
    src, dst = np.array([69_999, 5, 69_999], np.int32), np.full(3, 69_998, np.int32)
    topology = build_topology(src, dst, 70_000, 70_000)
    assert topology.indices.tolist() == [5, 69_999, 69_999]
    assert topology.edge_ids.tolist() == [1, 0, 2]
    assert (topology.indptr[69_998], topology.indptr[69_999]) == (0, 3)
    # Ids that do not fit have eight bytes.
    wide = topology_arrays(1 << 31, 1 << 31, 1)
    assert {wide["indices"][0], wide["edge_ids"][0]} == {np.dtype(np.int64)}


def test_refused_edges():
    cases: list[tuple[list[float], list[int], str]] = [
        ([0, 2], [0, 0], r"citations: src of edge 1: expected an id in \[0, 2\), given 2"),
        ([0, 1], [0, -1], r"citations: dst of edge 1: expected an id in \[0, 3\), given -1"),
        ([0], [0, 1], "citations: expected as many sources as destinations, given 1 and 2"),
        ([0.0], [0], "src: expected a one-dimensional int32 or int64 array"),
    ]
    for src, dst, text in cases:
        with pytest.raises(GraphError, match=text):
            build_topology(np.array(src), np.array(dst), 2, 3, where="citations")
