"""A graph of two node types, one without features, and a relation in each direction."""

from __future__ import annotations

import numpy as np
import pytest

from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.schema import Relation


@pytest.fixture(scope="session")
def typed_graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """Its roots are papers; rows of authors are learned."""
    generator, counts = np.random.default_rng(0), {"author": 60, "paper": 90}
    relations = [
        Relation("author", "writes", "paper"),
        Relation("paper", "written_by", "author"),
        Relation("paper", "cites", "paper"),
    ]
    schema = GraphSchema(
        name="papers",
        node_types={"author": NodeType(60), "paper": NodeType(90, 5, "float32")},
        relations={relation: EdgeType(300) for relation in relations},
        target="paper",
        labels={"paper": Labels("class", 3)},
        splits={"train": 40, "val": 10, "test": 30},
    )
    path = tmp_path_factory.mktemp("typed") / "graph"
    with GraphWriter(path, schema) as writer:
        for relation in relations:
            ends = (generator.integers(0, counts[node_type], 300) for node_type in relation[::2])
            writer.topology(relation, *ends)
        writer.features("paper")[:] = generator.standard_normal((90, 5))
        writer.labels("paper", generator.integers(0, 3, 90))
        order = generator.permutation(90)
        for name, part in (("train", order[:40]), ("val", order[40:50]), ("test", order[50:80])):
            writer.split(name, np.sort(part))
    return GraphDirectory.open(path)
