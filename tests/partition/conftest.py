"""Small graph directories to divide."""

from __future__ import annotations

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


def library_schema() -> GraphSchema:
    """Repeated relation names, an empty type, a type too small for every server to have a node."""
    return GraphSchema(
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


def fill_graph(writer: GraphWriter, schema: GraphSchema, generator: np.random.Generator) -> None:
    """Write random edges (parallel ones and self-loops included), features, labels and splits."""
    for relation, edges in schema.relations.items():
        sources = schema.node_types[relation.src].count
        destinations = schema.node_types[relation.dst].count
        src = generator.integers(0, max(sources, 1), edges.count)
        dst = generator.integers(0, max(destinations, 1), edges.count)
        writer.topology(relation, src, dst)
        if edges.feature_dim is not None:
            table = writer.edge_features(relation)
            table[...] = generator.random(table.shape)
    for name, kind in schema.node_types.items():
        if kind.feature_dim is not None:
            table = writer.features(name)
            table[...] = generator.random(table.shape)
    for name, labels in schema.labels.items():
        count = schema.node_types[name].count
        if labels.kind == "class":
            writer.labels(name, generator.integers(-1, labels.classes, count))
        elif labels.kind == "multi_hot":
            writer.labels(name, generator.integers(0, 2, (count, labels.classes), np.uint8))
        else:
            writer.labels(name, generator.random(count, np.float32))
    target = schema.target
    population = (
        schema.node_types[target].count
        if isinstance(target, str)
        else schema.relations[target].count
    )
    for name, size in schema.splits.items():
        writer.split(name, generator.permutation(population)[:size])


@pytest.fixture(scope="session")
def shared_library(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """A heterogeneous graph with every kind of table, for tests that only read it."""
    return _write_library(tmp_path_factory.mktemp("shared"))


@pytest.fixture
def library(tmp_path: Path) -> GraphDirectory:
    """The same graph, alone in a folder of the test's own."""
    return _write_library(tmp_path)


def _write_library(folder: Path) -> GraphDirectory:
    out, schema = folder / "library", library_schema()
    with GraphWriter(out, schema) as writer:
        fill_graph(writer, schema, np.random.default_rng(7))
    return GraphDirectory.open(out)


@pytest.fixture
def make_graph(tmp_path: Path) -> MakeGraph:
    """Return a function of (name, nodes, src, dst, train ids) that writes a homogeneous graph."""
    return partial(write_graph, tmp_path)


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """Four communities of 500, interleaved by id; nine edges in ten stay inside."""
    ends = planted_edges(np.random.default_rng(3), 2000, 10_000, 4, 0.9)
    return write_graph(
        tmp_path_factory.mktemp("planted"), "planted", 2000, *ends, range(0, 2000, 3)
    )


def write_graph(
    folder: Path, name: str, nodes: int, src: ArrayLike, dst: ArrayLike, train: Sequence[int]
) -> GraphDirectory:
    relation = Relation("node", "edge", "node")
    schema = GraphSchema(
        name=name,
        node_types={"node": NodeType(nodes)},
        relations={relation: EdgeType(np.size(src))},
        target="node",
        splits={"train": len(train)} if train else {},
    )
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
