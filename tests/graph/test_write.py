"""The writer: all or nothing, and nothing that contradicts the schema."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import tracemalloc
from collections import namedtuple
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopper.errors import GraphError, RequestError
from hopper.graph import (
    EdgeType,
    GraphDirectory,
    GraphSchema,
    GraphWriter,
    Labels,
    NodeType,
    Relation,
    array_file,
    build_topology,
    required_bytes,
)
from hopper.graph.layout import label_names_file
from hopper.graph.names import Names
from hopper.graph.publish import atomic_output_dir

Parts = tuple[GraphSchema, Callable[[GraphWriter], None]]

KNOWS, OTHER = Relation("person", "knows", "person"), Relation("a", "b", "c")


def small_schema(**changes: object) -> GraphSchema:
    """Two people who may know each other."""
    schema = GraphSchema(
        "small",
        {"person": NodeType(2, 3, "float32")},
        {KNOWS: EdgeType(1)},
        "person",
        {"person": Labels("class", 2)},
        {"train": 1},
    )
    return dataclasses.replace(schema, **changes)  # type: ignore[arg-type]


def write_small(writer: GraphWriter) -> None:
    """Write all parts of the small graph."""
    writer.topology(KNOWS, np.array([1]), np.array([0]))
    writer.features("person")[0] = 7
    writer.labels("person", np.array([1, -1]))
    writer.split("train", np.array([0]))


def test_bytes_on_disk_are_known_beforehand(library: Path, library_parts: Parts) -> None:
    arrays = sum(file.stat().st_size for file in library.rglob("*.npy"))
    assert arrays == required_bytes(library_parts[0])


def test_an_empty_destination_is_taken_and_nothing_else_is_left(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "graph"
    out.mkdir(parents=True)
    with GraphWriter(out, small_schema()) as writer:
        write_small(writer)
        assert not any(out.iterdir())
    assert [entry.name for entry in out.parent.iterdir()] == ["graph"]
    assert GraphDirectory.open(out).features("person").tolist() == [[7, 7, 7], [0, 0, 0]]


def test_a_destination_with_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "keep").write_text("mine", encoding="utf-8")
    with pytest.raises(RequestError, match="already exists and is not empty"):
        GraphWriter(tmp_path, small_schema()).__enter__()
    with pytest.raises(RequestError, match="keep: already exists and is not a directory"):
        GraphWriter(tmp_path / "keep", small_schema()).__enter__()
    assert (tmp_path / "keep").read_text(encoding="utf-8") == "mine"
    assert [entry.name for entry in tmp_path.iterdir()] == ["keep"]


def test_a_destination_filled_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "graph"

    def write() -> None:
        with GraphWriter(out, small_schema()) as writer:
            write_small(writer)
            out.mkdir()
            (out / "other").touch()

    with pytest.raises(RequestError, match="already exists and is not empty"):
        write()
    assert [entry.name for entry in tmp_path.iterdir()] == ["graph"]
    assert [entry.name for entry in out.iterdir()] == ["other"]


def test_an_exception_leaves_nothing_behind(tmp_path: Path) -> None:
    def write() -> None:
        with GraphWriter(tmp_path / "graph", small_schema()) as writer:
            write_small(writer)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_published_folder_is_on_the_disk_and_obeys_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_missing_parts_are_listed(tmp_path: Path, library_parts: Parts) -> None:
    schema, _ = library_parts

    def write() -> None:
        with GraphWriter(tmp_path / "graph", schema) as writer:
            writer.split("val", np.array([], np.int64))

    text = (
        "edge features of author/linked/paper, features of author, features of paper, "
        "features of venue, labels of author, labels of paper, labels of venue, split of test, "
        "split of train, topology of author/linked/paper, topology of author/reviews/paper"
    )
    with pytest.raises(GraphError, match=re.escape(text)):
        write()
    assert list(tmp_path.iterdir()) == []


def test_too_little_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**6, 10**6 - 500, 500))
    needed = required_bytes(small_schema())
    text = re.escape(f"({needed} bytes) needed, 0.00 GiB (500 bytes) available")
    with pytest.raises(RequestError, match=f"too little disk space: .*{text}"):
        GraphWriter(tmp_path / "graph", small_schema()).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_a_schema_that_contradicts_itself(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"graph\.json: target: expected one of the node types"):
        GraphWriter(tmp_path / "graph", small_schema(target="robot")).__enter__()


def test_topology_built_elsewhere(tmp_path: Path) -> None:
    topology = build_topology(np.array([1]), np.array([0]), 2, 2)
    with GraphWriter(tmp_path / "graph", small_schema()) as writer:
        write_small(writer)
        writer.topology_csc(KNOWS, topology)
        short = dataclasses.replace(topology, in_degrees=topology.in_degrees[:1])
        with pytest.raises(GraphError, match=r"in_degrees of .* of shape \[2\], given int64 of"):
            writer.topology_csc(KNOWS, short)
        writer.topology_csc(KNOWS, topology)
    assert GraphDirectory.open(tmp_path / "graph").topology(KNOWS).indices.tolist() == [1]


def test_names_are_kept_beside_the_schema(tmp_path: Path) -> None:
    with GraphWriter(tmp_path / "graph", small_schema()) as writer:
        write_small(writer)
        with pytest.raises(GraphError, match="row 0: expected one line"):
            writer.names("person", ["A\nda", "Bo"])
        with pytest.raises(GraphError, match="names of person: expected one for each"):
            writer.names("person", ["Ada"])
        writer.names("person", ["Ada", "Bo Ö."])
    text = (tmp_path / "graph/names/person.txt").read_text(encoding="utf-8")
    assert text == "Ada\nBo Ö.\n"


class ManyNames(Sequence[str]):
    """Names that are made one at a time."""

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, row: Any) -> Any:
        if row >= len(self):
            raise IndexError
        return f"{row:0400d}"


def test_names_may_be_larger_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_file, "BLOCK_BYTES", 1 << 20)
    names = ManyNames()
    tracemalloc.start()
    with GraphWriter(tmp_path / "graph", small_schema()) as writer:
        write_small(writer)
        writer.label_names("person", names)
    file = label_names_file(tmp_path / "graph", "person")
    assert file.stat().st_size == 401 * 50_000
    opened = Names(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert opened.of(np.array([0, 49_999])) == [names[0], names[49_999]]
    assert peak < file.stat().st_size / 4


BAD_PARTS: list[tuple[Callable[[GraphWriter], object], str]] = [
    (
        lambda w: w.topology(Relation("a", "b", "c"), np.array([0]), np.array([0])),
        "topology: the schema has none for 'a/b/c'",
    ),
    (lambda w: w.topology(KNOWS, np.array([0, 1]), np.array([0, 1])), "expected 1 edges, given 2"),
    (
        lambda w: w.topology(KNOWS, np.array([2]), np.array([0])),
        "edges of person/knows/person: src",
    ),
    (lambda w: w.features("robot"), "features: the schema has none for 'robot'"),
    (lambda w: w.edge_features(KNOWS), "edge features: the schema has none for"),
    (lambda w: w.labels("robot", np.array([0])), "labels: the schema has none for 'robot'"),
    (lambda w: w.labels("person", np.array([0, 1], np.int32)), "expected int64 of shape [2], giv"),
    (lambda w: w.labels("person", np.array([0])), "expected int64 of shape [2], given int64 of"),
    (lambda w: w.labels("person", np.array([0, 2])), "of node 1: expected -1 or a class in [0, 2)"),
    (lambda w: w.split("dev", np.array([0])), "split: the schema has none for 'dev'"),
    (
        lambda w: w.split("train", np.array([0, 1])),
        "split train: expected int64 of shape [1], giv",
    ),
    (lambda w: w.split("train", np.array([2])), "split train: at 0: expected an id in [0, 2), giv"),
    (
        lambda w: w.split("train", np.array([0.0])),
        "train: expected int64 of shape [1], given",
    ),
]


@pytest.mark.parametrize(("write", "text"), BAD_PARTS)
def test_parts_that_contradict_the_schema(
    tmp_path: Path, write: Callable[[GraphWriter], object], text: str
) -> None:
    def write_graph() -> None:
        with GraphWriter(tmp_path / "graph", small_schema()) as writer:
            write(writer)

    with pytest.raises(GraphError, match=re.escape(text)):
        write_graph()
    assert list(tmp_path.iterdir()) == []


def test_repeated_split_ids(tmp_path: Path) -> None:
    def write_graph() -> None:
        with GraphWriter(tmp_path / "graph", small_schema(splits={"train": 2})) as writer:
            writer.split("train", np.array([1, 1]))

    with pytest.raises(GraphError, match="at 1: expected distinct ids in ascending order, given 1"):
        write_graph()
