"""A small typed graph and the models that are trained on it; no tests of its own.

Relation names repeat between type pairs, one relation and one type are empty, and features have
another width in every type.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.graph.schema import Relation
from hopper.hetero.metagraph import make_metagraph
from hopper.hetero.metatree import make_metatree
from hopper.hetero.vertex_cut import cut, part_bytes

COUNTS = {"author": 60, "field": 9, "nobody": 0, "paper": 120}
WIDTHS = {"author": 5, "field": 3, "nobody": 2, "paper": 7}
# Rows of the others are learned.
WITH_FEATURES = ("paper", "nobody")
EDGES = {
    Relation("author", "to", "paper"): 300,
    Relation("paper", "to", "author"): 200,
    Relation("paper", "to", "paper"): 400,
    Relation("field", "to", "paper"): 150,
    Relation("paper", "has", "field"): 150,
    Relation("author", "likes", "field"): 0,
    Relation("nobody", "to", "paper"): 0,
}
LEARNABLE: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.05, "dim": 6, "l2": 0.02}
TRAIN: dict[str, Any] = {
    "batch_size": 8,
    "epochs": 1,
    "learning_rate": 0.01,
    "dtype": "float64",
    "record_gradients": [0, 1],
    "seed": 5,
}
MODELS: dict[str, dict[str, Any]] = {
    "rgcn": {"name": "rgcn", "layers": 2, "hidden": 8, "dropout": 0.3},
    "rgcn of bases": {"name": "rgcn", "layers": 2, "hidden": 8, "bases": 2},
    "rgcn in blocks": {"name": "rgcn", "layers": 3, "hidden": 8, "diagonal_blocks": 4},
    "rgat": {"name": "rgat", "layers": 2, "hidden": 8, "heads": 2, "dropout": 0.3},
    "hgt": {"name": "hgt", "layers": 2, "hidden": 8, "heads": 2, "dropout": 0.3},
    "hgt, one layer": {"name": "hgt", "layers": 1, "hidden": 8, "heads": 2},
    "sehgnn": {"name": "sehgnn", "hidden": 8, "heads": 2, "dropout": 0.3, "layers": 1},
    "nars": {"name": "nars", "hidden": 8, "dropout": 0.3, "layers": 1},
    "own, mean of present": {
        "name": "hgnn",
        "layers": 2,
        "hidden": 8,
        "aggregate": "gated_aggregation:GatedAggregation",
        "combine": "mean_of_present",
    },
    "own, relations apart": {
        "name": "hgnn",
        "layers": 2,
        "hidden": 8,
        "dropout": 0.2,
        "aggregate": "own_aggregations:Dropping",
        "combine": "own_aggregations:AttentionOverRelations",
    },
}


def make_graph(out: Path, with_features: tuple[str, ...]) -> GraphDirectory:
    generator = np.random.default_rng(3)
    schema = GraphSchema(
        name="typed",
        node_types={
            name: NodeType(count, WIDTHS[name], "float32")
            if name in with_features
            else NodeType(count)
            for name, count in COUNTS.items()
        },
        relations={relation: EdgeType(count) for relation, count in EDGES.items()},
        target="paper",
        labels={"paper": Labels("class", 4)},
        splits={"train": 50, "val": 20, "test": 20},
    )
    with GraphWriter(out, schema) as writer:
        for relation, count in EDGES.items():
            src = generator.integers(0, max(1, COUNTS[relation.src]), count)
            dst = generator.integers(0, max(1, COUNTS[relation.dst]), count)
            writer.topology(relation, src, dst)
        for name in with_features:
            writer.features(name)[:] = generator.standard_normal((COUNTS[name], WIDTHS[name]))
        writer.labels("paper", generator.integers(0, 4, COUNTS["paper"]))
        order = generator.permutation(COUNTS["paper"])
        for split, first in (("train", 0), ("val", 50), ("test", 70)):
            writer.split(split, np.sort(order[first : first + schema.splits[split]]))
    return GraphDirectory.open(out)


WRITES, CITES = Relation("author", "to", "paper"), Relation("paper", "to", "paper")
DRAWN_EDGES = {
    WRITES: 400,
    CITES: 500,
    Relation("paper", "to", "author"): 250,
    Relation("field", "to", "paper"): 150,
    Relation("paper", "has", "field"): 150,
    Relation("nobody", "to", "paper"): 0,
}
WEIGHTED = {WRITES, CITES, Relation("paper", "has", "field"), Relation("nobody", "to", "paper")}
TIMED = {WRITES, Relation("field", "to", "paper"), Relation("nobody", "to", "paper")}
KNOWS, LIKES = ("person", "knows", "person"), ("person", "likes", "person")
BORROWS, WROTE = ("reader", "borrows", "book"), ("author", "wrote", "book")
END_COUNTS = {"person": 70, "group": 12, "reader": 60, "book": 45, "author": 20}


def make_drawn_graph(out: Path) -> GraphDirectory:
    """Papers have times, and so have some relations. A hub has many edges, some at one time."""
    generator = np.random.default_rng(6)
    edges = {}
    for relation, count in DRAWN_EDGES.items():
        src = generator.integers(0, max(1, COUNTS[relation.src]), count)
        dst = generator.integers(0, max(1, COUNTS[relation.dst]), count)
        dst[: count // 5] = 4
        edges[tuple(relation)] = np.stack([src, dst])
    order = generator.permutation(COUNTS["paper"])
    splits = {"train": order[:50], "val": order[50:70], "test": order[70:90]}
    return GraphDirectory.from_arrays(
        out,
        edges,
        {
            node_type: generator.random((count, WIDTHS[node_type]))
            for node_type, count in COUNTS.items()
        },
        {"paper": generator.integers(0, 4, COUNTS["paper"])},
        splits,
        edge_features={tuple(WRITES): generator.random((DRAWN_EDGES[WRITES], 2))},
        edge_weights={
            tuple(relation): np.exp(generator.normal(0, 2, DRAWN_EDGES[relation]))
            for relation in sorted(WEIGHTED)
        },
        times={
            "paper": generator.integers(-5, 20, COUNTS["paper"]),
            **{
                tuple(relation): generator.integers(-9, 20, DRAWN_EDGES[relation])
                for relation in sorted(TIMED)
            },
        },
        target="paper",
    )


def memory_for_parts(
    graph: GraphDirectory, root: Relation = CITES, metapaths: Sequence[Sequence[str]] = ()
) -> int:
    """Return the smallest memory of a server with which a root relation is cut in two."""
    tree = make_metatree(make_metagraph(graph.schema), "paper", 2, metapaths)
    return max(sum(part_bytes(graph, part)) for part in cut(graph, tree, root, 2))


def _ends(source: str, destination: str, edges: int) -> np.ndarray:
    generator = np.random.default_rng(edges)
    return np.stack(
        [generator.integers(0, END_COUNTS[node_type], edges) for node_type in (source, destination)]
    )


def _write_edges(
    out: Path,
    edges: dict[tuple[str, str, str], np.ndarray],
    targets: list[tuple[str, str, str]],
    *,
    labelled: bool = False,
    is_timed: bool = False,
) -> GraphDirectory:
    """Write a graph of some relations, with weights. Groups and authors have no features."""
    types = {end for src, _, dst in edges for end in (src, dst)}
    widths = {"person": 6, "reader": 4, "book": 5}
    generator = np.random.default_rng(1)
    features = {
        node_type: generator.random((END_COUNTS[node_type], widths[node_type]))
        for node_type in types & {*widths}
    }
    return GraphDirectory.from_arrays(
        out,
        edges,
        features=features,
        labels={target: edges[target].sum(0) % 3 for target in targets} if labelled else None,
        edge_weights={relation: 0.5 + pairs.sum(0) % 7 for relation, pairs in edges.items()},
        times={relation: pairs.sum(0) % 9 for relation, pairs in edges.items()}
        if is_timed
        else None,
        counts={node_type: END_COUNTS[node_type] for node_type in sorted(types)},
        target=targets,
        options=ImportOptions(split=RandomSplit(0.7, 0.15, by_time=is_timed)),
    )


def make_people(out: Path) -> GraphDirectory:
    """All ends are people: who knows whom, in both directions, and who likes whom."""
    knows, belongs = _ends("person", "person", 180), _ends("person", "group", 130)
    edges = {
        KNOWS: knows,
        ("person", "known_by", "person"): knows[::-1],
        LIKES: _ends("person", "person", 120),
        ("person", "in", "group"): belongs,
        ("group", "has", "person"): belongs[::-1],
    }
    return _write_edges(out, edges, [KNOWS, LIKES])


def make_library(out: Path, *, labelled: bool = False, is_timed: bool = False) -> GraphDirectory:
    """Ends are readers, books and authors; no relation leads to authors."""
    borrows = _ends("reader", "book", 260)
    edges = {
        BORROWS: borrows,
        ("book", "lent_to", "reader"): borrows[::-1],
        WROTE: _ends("author", "book", 90),
        ("reader", "knows", "reader"): _ends("reader", "reader", 150),
    }
    return _write_edges(out, edges, [BORROWS, WROTE], labelled=labelled, is_timed=is_timed)
