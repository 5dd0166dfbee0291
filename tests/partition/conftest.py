"""Small graph directories to divide."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import EdgeType, GraphSchema, Labels, NodeType, Relation
from hopper.graph.write import GraphWriter

MakeGraph = Callable[..., GraphDirectory]


def write_library(folder: Path) -> GraphDirectory:
    """Write a graph with repeated relation names, parallel edges, self-loops, an empty type, and a
    type too small for every server to have a node."""
    schema = GraphSchema(
        name="library",
        node_types={
            "author": NodeType(17, 3, "float16"),
            "paper": NodeType(40, 5, "float32"),
            "venue": NodeType(1),
            "keyword": NodeType(0, 4, "float32"),
        },
        relations={
            Relation("author", "links", "paper"): EdgeType(90, 2, "float32"),
            Relation("paper", "links", "author"): EdgeType(60),
            Relation("paper", "links", "paper"): EdgeType(150),
            Relation("keyword", "links", "paper"): EdgeType(0),
            Relation("paper", "appears", "venue"): EdgeType(40, 1, "float16"),
        },
        target="paper",
        labels={
            "paper": Labels("class", 4),
            "author": Labels("multi_hot", 6),
            "venue": Labels("float", 1),
        },
        splits={"train": 15, "val": 10},
    )
    generator, out = np.random.default_rng(7), folder / "library"
    with GraphWriter(out, schema) as writer:
        for relation, edges in schema.relations.items():
            counts = (schema.node_types[end].count for end in (relation.src, relation.dst))
            ends = [generator.integers(0, max(count, 1), edges.count) for count in counts]
            writer.topology(relation, *ends)
            if edges.feature_dim is not None:
                table = writer.features(relation)
                table[...] = generator.random(table.shape)
        for name, kind in schema.node_types.items():
            if kind.feature_dim is not None:
                table = writer.features(name)
                table[...] = generator.random(table.shape)
        writer.labels("paper", generator.integers(-1, 4, 40))
        writer.labels("author", generator.integers(0, 2, (17, 6), np.uint8))
        writer.labels("venue", generator.random(1, np.float32))
        for name, size in schema.splits.items():
            writer.split(name, generator.permutation(40)[:size])
    return GraphDirectory.open(out)


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
    relation = Relation("node", "edge", "node")
    splits = {"train": len(train)} if train else {}
    edges = {relation: EdgeType(np.size(src))}
    schema = GraphSchema(name, {"node": NodeType(nodes)}, edges, "node", splits=splits)
    with GraphWriter(folder / name, schema) as writer:
        writer.topology(relation, np.asarray(src, np.int64), np.asarray(dst, np.int64))
        if train:
            writer.split("train", np.array(train, np.int64))
    return GraphDirectory.open(folder / name)


def planted_edges(
    generator: np.random.Generator, nodes: int, edges: int, parts: int, share_inside: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Make edges of which a share stays in its community; communities interleave by id."""
    src = generator.integers(0, nodes, edges)
    inside = parts * generator.integers(0, nodes // parts, edges) + src % parts
    is_inside = generator.random(edges) < share_inside
    return src, np.where(is_inside, inside, generator.integers(0, nodes, edges))
