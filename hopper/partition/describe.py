"""partition.json: what a partition is, how good it is, and what making it took."""

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
from hopper.partition.halo import TopologyChoice
from hopper.partition.layouts import DESCRIPTION_FILE
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
    """The content of partition.json, without times and locality.

    Parameters
    ----------
    offsets: by node type, [servers + 1] int64.
    parts: of every server, by relation, the edges into its nodes, and how many come from elsewhere.
    train: [servers] int64, training roots.
    feature_bytes: bytes of feature rows on each server.
    """
    servers = len(feature_bytes)
    nodes = sum((np.diff(each) for each in offsets.values()), np.zeros(servers, np.int64))
    in_edges = {each: [part[each][0] for part in parts] for each in schema.relations}
    cut = {each: sum(part[each][1] for part in parts) for each in schema.relations}
    edges = sum(map(np.array, in_edges.values()), np.zeros(servers, np.int64))
    return {
        "schema": PARTITION_SCHEMA_VERSION,
        "graph": schema.name,
        "method": assignment.method,
        "backend": assignment.backend,
        "servers": servers,
        "seed": assignment.seed,
        "seed_used": assignment.seed_used,
        "offsets": {node_type: each.tolist() for node_type, each in offsets.items()},
        "edge_offsets": {
            str(relation): [0, *np.cumsum(each).tolist()]
            for relation, each in in_edges.items()
            if schema.relations[relation].feature_dim is not None
        },
        "edge_cut": _fraction(sum(cut.values()), int(edges.sum())),
        "edge_cut_by_relation": {
            str(relation): _fraction(each, schema.relations[relation].count)
            for relation, each in cut.items()
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
    """What partition.json says besides, and in place of what :func:`describe` made, where topology
    is partitioned.

    Parameters
    ----------
    per_server: as :func:`describe` made it.
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
