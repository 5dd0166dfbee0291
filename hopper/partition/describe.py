"""Describe a division of nodes for partition.json: what was asked for, and what each server got."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import Relation
from hopper.partition.balance import count_roots
from hopper.partition.description import PARTITION_SCHEMA_VERSION
from hopper.partition.partitioner import Assigner
from hopper.partition.write import BuildContext

Counts = NDArray[np.int64]


def describe(
    context: BuildContext,
    assigner: Assigner,
    seed: int,
    topology: str,
    edge_counts: Sequence[Mapping[Relation, tuple[int, int]]],
    feature_bytes: Sequence[int],
) -> dict[str, Any]:
    """Describe how nodes were divided, which edges that cuts, and the shares of the servers.

    ``topology`` is the name of the layout. ``edge_counts`` are, by server and relation, numbers of
    edges into its nodes and of cut edges among them, and ``feature_bytes`` its bytes of features.
    """
    relations, servers = context.graph.schema.relations, context.servers
    cut = {r: sum(part[r][1] for part in edge_counts) for r in relations}
    shares = _count_shares(context, edge_counts)
    counts = {
        "nodes": [sum(of_types) for of_types in zip(*shares["nodes"].values(), strict=True)],
        "edges": shares["edges"],
        "train": shares["splits"].get("train", [0] * servers),
    }
    columns = counts | {"feature_bytes": feature_bytes}
    return {
        "schema": PARTITION_SCHEMA_VERSION,
        "graph": context.graph.schema.name,
        "method": assigner.method,
        "backend": assigner.library,
        "servers": servers,
        "seed": seed,
        "seed_used": assigner.uses_seed(servers),
        "offsets": {node_type: bounds.tolist() for node_type, bounds in context.offsets.items()},
        "edge_offsets": {
            str(relation): [0, *np.cumsum([part[relation][0] for part in edge_counts]).tolist()]
            for relation, kind in relations.items()
            if kind.feature_dim is not None
        },
        "edge_cut": _fraction(sum(cut.values()), sum(kind.count for kind in relations.values())),
        "edge_cut_by_relation": {
            str(relation): _fraction(count, relations[relation].count)
            for relation, count in cut.items()
        },
        "topology": topology,
        "balance": {name: imbalance(np.array(values)) for name, values in counts.items()},
        "per_server": [
            {name: values[server] for name, values in columns.items()} for server in range(servers)
        ],
        "shares": {"servers": shares},
    }


def _count_shares(
    context: BuildContext, edge_counts: Sequence[Mapping[Relation, tuple[int, int]]]
) -> dict[str, Any]:
    """Count each server's nodes by type, in-edges, and roots by split, with largest over mean."""
    graph, target = context.graph, context.graph.schema.target_type()
    global_ids, bounds = context.map(target, "global_ids"), context.offsets[target]

    def home_of(ids: Counts) -> Counts:
        return np.searchsorted(bounds, global_ids[ids], "right") - 1

    nodes = {name: np.diff(offsets) for name, offsets in context.offsets.items()}
    edges = np.array([sum(count for count, _ in part.values()) for part in edge_counts])
    splits = {
        split: count_roots(graph, split, context.servers, home_of) for split in graph.schema.splits
    }

    def per_server(describe_counts: Callable[[Counts], Any]) -> dict[str, Any]:
        return {
            "nodes": {name: describe_counts(counts) for name, counts in nodes.items()},
            "edges": describe_counts(edges),
            "splits": {name: describe_counts(counts) for name, counts in splits.items()},
        }

    return per_server(np.ndarray.tolist) | {"largest_over_mean": per_server(imbalance)}


def imbalance(shares: Counts) -> float:
    """Return the maximum over mean; 1 if all shares are 0."""
    return round(float(shares.max() / shares.mean()), 6) if shares.any() else 1.0


def _fraction(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
