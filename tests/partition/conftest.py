"""Small graph directories to divide."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from hopper.graph.directory import GraphDirectory

MakeGraph = Callable[..., GraphDirectory]


def write_library(folder: Path) -> GraphDirectory:
    """Write a graph with repeated relation names, parallel edges, self-loops, an empty type, and a
    type too small for every server to have a node."""
    counts = {"author": 17, "paper": 40, "venue": 1, "keyword": 0}
    relations = {
        ("author", "links", "paper"): 90,
        ("paper", "links", "author"): 60,
        ("paper", "links", "paper"): 150,
        ("keyword", "links", "paper"): 0,
        ("paper", "appears", "venue"): 40,
    }
    generator = np.random.default_rng(7)
    return GraphDirectory.from_arrays(
        folder / "library",
        {
            relation: [generator.integers(0, max(counts[name], 1), edges) for name in relation[::2]]
            for relation, edges in relations.items()
        },
        features={
            "author": generator.random((17, 3)).astype(np.float16),
            "paper": generator.random((40, 5), np.float32),
            "keyword": np.empty((0, 4), np.float32),
        },
        labels={
            "paper": generator.integers(-1, 4, 40),
            "author": generator.integers(0, 2, (17, 6), np.uint8),
            "venue": generator.random(1, np.float32),
        },
        splits={name: generator.permutation(40)[:n] for name, n in (("train", 15), ("val", 10))},
        edge_features={
            ("author", "links", "paper"): generator.random((90, 2)),
            ("paper", "appears", "venue"): generator.random((40, 1)).astype(np.float16),
        },
        counts=counts,
        target="paper",
        name="library",
    )


@pytest.fixture(scope="session")
def shared_library(tmp_path_factory) -> GraphDirectory:
    """A typed graph with every kind of table, for tests that only read it."""
    return write_library(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def library(tmp_path) -> GraphDirectory:
    """The same graph, alone in a folder of the test's own."""
    return write_library(tmp_path)


@pytest.fixture
def make_graph(tmp_path) -> MakeGraph:
    """Return a function of (name, nodes, src, dst, train ids) that writes a homogeneous graph."""
    return partial(write_graph, tmp_path)


@pytest.fixture(scope="session")
def planted(tmp_path_factory) -> GraphDirectory:
    """Four communities of 500, interleaved by id; nine edges in ten stay inside."""
    ends = planted_edges(np.random.default_rng(3), 2000, 10_000, 4, 0.9)
    folder = tmp_path_factory.mktemp("planted")
    return write_graph(folder, "planted", 2000, *ends, range(0, 2000, 3))


def write_graph(
    folder: Path, name: str, nodes: int, src: ArrayLike, dst: ArrayLike, train: Sequence[int]
) -> GraphDirectory:
    edges, splits = np.array([src, dst], np.int64), {"train": train} if len(train) else None
    options: Any = {"counts": nodes, "target": "node", "name": name}
    return GraphDirectory.from_arrays(folder / name, edges, splits=splits, **options)


def planted_edges(
    generator: np.random.Generator, nodes: int, edges: int, parts: int, share_inside: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Make edges of which a share stays in its community; communities interleave by id."""
    src = generator.integers(0, nodes, edges)
    inside = parts * generator.integers(0, nodes // parts, edges) + src % parts
    is_inside = generator.random(edges) < share_inside
    return src, np.where(is_inside, inside, generator.integers(0, nodes, edges))
