"""Describe a division of nodes for partition.json: what was asked for, and what each server and
rank got."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import Relation
from hopper.partition.balance import SplitGraph, count_roots
from hopper.partition.description import PARTITION_SCHEMA_VERSION
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.partitioner import Assigner
from hopper.partition.write import BuildContext

Counts = NDArray[np.int64]
_NODES_AT_ONCE: Final = 1 << 20


def describe(
    context: BuildContext,
    assigner: Assigner,
    seed: int,
    edge_counts: Sequence[Mapping[Relation, tuple[int, int]]],
) -> dict[str, Any]:
    """Describe how nodes were divided, and which edges that cuts; ``edge_counts`` are, by server
    and relation, numbers of edges into its nodes and of cut edges among them."""
    relations, servers = context.graph.schema.relations, context.servers
    cut = {r: sum(part[r][1] for part in edge_counts) for r in relations}
    chosen = assigner.balance.chosen
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
        **({"balanced": list(chosen)} if chosen else {}),
    }


def describe_shares(
    graph: SplitGraph, divided: PartitionedGraph, ranks: int, feature_bytes: Sequence[int]
) -> dict[str, Any]:
    """Describe the shares of servers, and of ranks of a second level: of the splits of ``graph``,
    and the whole topology of the same graph, divided."""
    shares = {"servers": _count_shares(graph, divided, 1)}
    if ranks > 1:
        shares["ranks"] = _count_shares(graph, divided, ranks)
    of_servers, servers = shares["servers"], divided.book.servers
    counts = {
        "nodes": [sum(of_types) for of_types in zip(*of_servers["nodes"].values(), strict=True)],
        "edges": of_servers["edges"],
        "train": of_servers["splits"].get("train", [0] * servers),
    }
    columns = counts | {"feature_bytes": feature_bytes}
    return {
        "balance": {name: imbalance(np.array(values)) for name, values in counts.items()},
        "per_server": [
            {name: values[server] for name, values in columns.items()} for server in range(servers)
        ],
        "shares": shares,
    }


def _count_shares(graph: SplitGraph, divided: PartitionedGraph, ranks: int) -> dict[str, Any]:
    """Count each rank's nodes by type, in-edges, and roots by split, with largest over mean."""
    placement, schema = divided.placement(ranks), divided.schema
    owners, target = placement.world, schema.target_type()
    nodes = {name: np.zeros(owners, np.int64) for name in schema.node_types}
    edges, global_ids = np.zeros(owners, np.int64), divided.global_ids(target)
    into = [(relation.dst, divided.topology(relation).indptr) for relation in divided.relations]
    for name, counts in nodes.items():
        total = divided.book.total(name)
        for first in range(0, total, _NODES_AT_ONCE):
            ids = np.arange(first, min(total, first + _NODES_AT_ONCE))
            ranks_of = placement.rank_of(name, ids)
            counts += np.bincount(ranks_of, minlength=owners)
            for indptr in (indptr for dst, indptr in into if dst == name):
                degrees = np.diff(indptr[first : first + ids.size + 1])
                # These sums are of floats, which are exact below 2**53.
                edges += np.bincount(ranks_of, degrees, owners).astype(np.int64)

    def owner_of(ids: Counts) -> Counts:
        return placement.rank_of(target, np.asarray(global_ids[ids]))

    splits = {split: count_roots(graph, split, owners, owner_of) for split in schema.splits}

    def per_owner(describe_counts: Callable[[Counts], Any]) -> dict[str, Any]:
        return {
            "nodes": {name: describe_counts(counts) for name, counts in nodes.items()},
            "edges": describe_counts(edges),
            "splits": {name: describe_counts(counts) for name, counts in splits.items()},
        }

    return per_owner(np.ndarray.tolist) | {"largest_over_mean": per_owner(imbalance)}


def imbalance(shares: Counts) -> float:
    """Return the maximum over mean; 1 if all shares are 0."""
    return round(float(shares.max() / shares.mean()), 6) if shares.any() else 1.0


def _fraction(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0
