"""A graph as it is handed to other systems: NumPy files by original ids, and a JSON file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np

from hopper.graph import GraphDirectory
from hopper.partition import PartitionedGraph

GRAPH_FILE: Final = "graph.json"


def hand_out(graph: GraphDirectory, parts: PartitionedGraph, out: Path) -> None:
    """Write a graph with the homes that its nodes have.

    ``graph.json`` tells servers, target and its classes, by type the number of nodes and the width
    of features (None = rows are learned), and relations. By type there are ``homes-TYPE.npy`` and
    ``features-TYPE.npy``, by place of a relation ``src-PLACE.npy`` and ``dst-PLACE.npy``, and
    ``labels.npy``, ``train.npy`` and ``test.npy`` (ids) of the target.

    Parameters
    ----------
    parts: the same graph, divided.
    out: a folder that does not exist yet.
    """
    out.mkdir(parents=True)
    schema, save = graph.schema, lambda name, array: np.save(out / f"{name}.npy", array)
    target = schema.target_type()
    for name, kind in schema.node_types.items():
        save(f"homes-{name}", parts.book.home(name, np.array(parts.global_ids(name))))
        if kind.feature_dim:
            save(f"features-{name}", graph.features(name))
    for place, relation in enumerate(schema.relations):
        topology = graph.topology(relation)
        degrees = topology.in_degrees
        save(f"src-{place}", topology.indices)
        save(f"dst-{place}", np.repeat(np.arange(degrees.size), degrees))
    save("labels", graph.labels(target))
    for split in ("train", "test"):
        save(split, graph.split(split))
    description = {
        "servers": parts.book.servers,
        "target": target,
        "classes": schema.labels[target].classes,
        "types": {
            name: {"count": kind.count, "dim": kind.feature_dim}
            for name, kind in schema.node_types.items()
        },
        "relations": [list(relation) for relation in schema.relations],
    }
    (out / GRAPH_FILE).write_text(json.dumps(description, indent=1) + "\n")
