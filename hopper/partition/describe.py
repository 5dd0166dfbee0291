"""Write partition.json, which describes a division, its quality, and the time that it took."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import GraphSchema, Relation
from hopper.partition.assign import Assignment
from hopper.partition.divide_topology import StoredTopology
from hopper.partition.file_names import DESCRIPTION_FILE
from hopper.partition.halo import TopologyChoice
from hopper.partition.partitioned_graph import PARTITION_SCHEMA_VERSION
from hopper.partition.shares import imbalance


def describe(
    schema: GraphSchema,
    assignment: Assignment,
    offsets: Mapping[str, NDArray[np.int64]],
    parts: Sequence[Mapping[Relation, tuple[int, int]]],
    train: NDArray[np.int64],
    feature_bytes: Sequence[int],
) -> dict[str, Any]:
    """Make the content of partition.json, without times and locality.

    Parameters
    ----------
    offsets: by node type, [servers + 1] int64.
    parts: for every server, by relation: number of edges into its nodes, and of cut edges among
        them.
    train: [servers] int64, number of training roots.
    feature_bytes: bytes of feature rows on each server.
    """
    servers = len(feature_bytes)
    nodes = sum((np.diff(bounds) for bounds in offsets.values()), np.zeros(servers, np.int64))
    in_edges = {relation: [part[relation][0] for part in parts] for relation in schema.relations}
    cut = {relation: sum(part[relation][1] for part in parts) for relation in schema.relations}
    edges = sum(map(np.array, in_edges.values()), np.zeros(servers, np.int64))
    return {
        "schema": PARTITION_SCHEMA_VERSION,
        "graph": schema.name,
        "method": assignment.method,
        "backend": assignment.backend,
        "servers": servers,
        "seed": assignment.seed,
        "seed_used": assignment.seed_used,
        "offsets": {node_type: bounds.tolist() for node_type, bounds in offsets.items()},
        "edge_offsets": {
            str(relation): [0, *np.cumsum(counts).tolist()]
            for relation, counts in in_edges.items()
            if schema.relations[relation].feature_dim is not None
        },
        "edge_cut": _fraction(sum(cut.values()), int(edges.sum())),
        "edge_cut_by_relation": {
            str(relation): _fraction(count, schema.relations[relation].count)
            for relation, count in cut.items()
        },
        "balance": {
            "nodes": imbalance(nodes),
            "edges": imbalance(edges),
            "train": imbalance(train),
        },
        "per_server": [
            {"nodes": n, "edges": e, "train": t, "feature_bytes": f}
            for n, e, t, f in zip(
                nodes.tolist(), edges.tolist(), train.tolist(), feature_bytes, strict=True
            )
        ],
        "topology": "replicated",
        **({} if assignment.refined is None else {"refined": dict(assignment.refined)}),
    }


def describe_topology(
    choice: TopologyChoice, per_server: Sequence[Mapping[str, Any]], stored: StoredTopology
) -> dict[str, Any]:
    """Make the fields of partition.json that differ from :func:`describe`'s for divided topology.

    Parameters
    ----------
    per_server: this field of :func:`describe`'s result, which is extended.
    """
    columns = {
        "halo_nodes": stored.halo_nodes,
        "halo_edges": stored.halo_edges,
        "topology_bytes": stored.stored,
        "topology_bytes_without_halo": stored.partitioned,
    }
    return {
        "topology": choice.name,
        "halo": choice.halo,
        "replicated_topology_bytes": stored.replicated,
        "per_server": [
            {**share, **{name: int(counts[server]) for name, counts in columns.items()}}
            for server, share in enumerate(per_server)
        ],
    }


def write_description(folder: Path, description: Mapping[str, Any]) -> None:
    """Write or replace partition.json in one step."""
    file = folder / DESCRIPTION_FILE
    temporary = file.with_name(f".{DESCRIPTION_FILE}.{os.getpid()}")
    temporary.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    temporary.replace(file)


def _fraction(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
