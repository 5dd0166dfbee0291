"""A small typed graph and the models that are trained on it; no tests of its own.

Relation names repeat between type pairs, one relation and one type are empty, and features have
another width in every type.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.schema import Relation

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
