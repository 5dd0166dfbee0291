"""A small graph with everything the layout allows, and the real graphs where they lie."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopper.graph import (
    EdgeType,
    GraphDirectory,
    GraphSchema,
    GraphWriter,
    Labels,
    NodeType,
    Relation,
)

CITES = Relation("paper", "linked", "paper")
WRITES = Relation("author", "linked", "paper")
WRITTEN_BY = Relation("paper", "linked", "author")
REVIEWS = Relation("author", "reviews", "paper")
APPEARS = Relation("paper", "appears", "venue")

EDGES = {
    # Two parallel edges 3 -> 0, a self loop on 2; paper 4 has no edge of this relation.
    CITES: ([3, 1, 3, 2, 0], [0, 0, 0, 2, 1]),
    WRITES: ([2, 0, 1], [1, 1, 0]),
    WRITTEN_BY: ([1, 1, 0], [2, 0, 1]),
    REVIEWS: ([], []),
    APPEARS: ([], []),
}


def library_schema() -> GraphSchema:
    """Three node types (one empty), five relations (three of one name, two empty)."""
    papers, authors = NodeType(5, 3, "float32"), NodeType(4, 2, "float16")
    counts = {WRITTEN_BY: 3, REVIEWS: 0, APPEARS: 0}
    others = {relation: EdgeType(count) for relation, count in counts.items()}
    labels = Labels("class", 3), Labels("multi_hot", 2), Labels("float", 1)
    return GraphSchema(
        name="library",
        source="made by hand",
        node_types={"paper": papers, "author": authors, "venue": NodeType(0, 7, "float32")},
        relations={CITES: EdgeType(5), WRITES: EdgeType(3, 2, "float32"), **others},
        target="paper",
        labels=dict(zip(("paper", "author", "venue"), labels, strict=True)),
        splits={"train": 2, "val": 0, "test": 1},
    )


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    """The library as a graph directory; tests that change it put it back."""
    out = tmp_path_factory.mktemp("graphs") / "library"
    with GraphWriter(out, library_schema()) as writer:
        for relation, (src, dst) in EDGES.items():
            writer.topology(relation, np.array(src, np.int32), np.array(dst, np.int32))
        writer.features("paper")[:] = np.arange(15).reshape(5, 3)
        writer.features("author")[:] = np.arange(8).reshape(4, 2)
        writer.features("venue")
        writer.features(WRITES)[:] = [[20, 1], [0, 1], [10, 0]]
        writer.labels("paper", np.array([0, 2, -1, 1, 2]))
        writer.labels("author", np.array([[1, 0], [1, 1], [0, 0], [0, 1]], np.uint8))
        writer.labels("venue", np.empty(0, np.float32))
        writer.split("train", np.array([4, 0]))
        writer.split("val", np.array([], np.int64))
        writer.split("test", np.array([3], np.int32))
    return out


@pytest.fixture(scope="session")
def friends(tmp_path_factory) -> Path:
    """A homogeneous graph whose target is its relation: splits hold edge ids."""
    relation = Relation("person", "knows", "person")
    out = tmp_path_factory.mktemp("graphs") / "friends"
    GraphDirectory.from_arrays(
        out,
        {relation: [[0, 1, 2, 2], [1, 2, 0, 0]]},
        labels={"person": np.array([[0.5, 1], [2, 3], [np.nan, np.nan]], np.float32)},
        splits={"train": [0, 3, 1], "test": [2]},
        target=relation,
    )
    return out


def write_frames(folder: Path, kind: str, tables: Mapping[str, Any]) -> str:
    """Write tables of columns as files of CSV or Parquet."""
    import pandas

    folder.mkdir(exist_ok=True)
    for name, columns in tables.items():
        frame, file = pandas.DataFrame(columns), folder / f"{name}.{kind}"
        frame.to_csv(file, index=False) if kind == "csv" else frame.to_parquet(file, index=False)
    return str(folder)


@contextmanager
def replaced(file: Path, content: bytes | np.ndarray) -> Iterator[None]:
    """Replace the content of a file, as bytes or an array, within a ``with`` block."""
    before = file.read_bytes()
    try:
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            np.save(file, content)
        yield
    finally:
        file.write_bytes(before)


@pytest.fixture
def real_data() -> Path:
    """The folder of real graphs."""
    default_folder = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("HOPPER_TEST_DATA", default_folder))
    if not folder.is_dir():
        pytest.skip(f"no real graphs at {folder}; set HOPPER_TEST_DATA")
    return folder
