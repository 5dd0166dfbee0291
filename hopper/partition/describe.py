"""Count what each server and rank got, and describe it for partition.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import Relation
from hopper.partition.build_context import BuildContext
from hopper.partition.description import PARTITION_SCHEMA_VERSION
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.partitioner import Assigner
from hopper.partition.training import SplitGraph, count_roots

Counts = NDArray[np.int64]
_NODES_AT_ONCE: Final = 1 << 20


def describe(
    context: BuildContext,
    assigner: Assigner,
    seed: int,
    edge_counts: Sequence[Mapping[Relation, tuple[int, int]]],
    feature_bytes: Sequence[int],
) -> dict[str, Any]:
    """Make what partition.json says of a division of nodes, of which ``edge_counts`` are, by server
    and relation, numbers of edges into its nodes and of cut edges among them."""
    schema, servers, offsets = context.graph.schema, context.servers, context.offsets
    target = context.maps[schema.target_type()]

    def home_of(ids: Counts) -> Counts:
        return np.searchsorted(target.offsets[1:], target.global_ids[ids], side="right")

    in_edges = {r: np.array([part[r][0] for part in edge_counts]) for r in schema.relations}
    cut = {r: sum(part[r][1] for part in edge_counts) for r in schema.relations}
    nothing = np.zeros(servers, np.int64)
    of_servers = {
        "nodes": sum(map(np.diff, offsets.values()), nothing),
        "edges": sum(in_edges.values(), nothing),
        "train": count_roots(context.graph, "train", servers, home_of),
    }
    columns = of_servers | {"feature_bytes": np.array(feature_bytes)}
    return {
        "schema": PARTITION_SCHEMA_VERSION,
        "graph": schema.name,
        "method": assigner.method,
        "backend": assigner.library,
        "servers": servers,
        "seed": seed,
        "seed_used": assigner.uses_seed(servers),
        "offsets": {node_type: bounds.tolist() for node_type, bounds in offsets.items()},
        "edge_offsets": {
            str(relation): [0, *np.cumsum(counts).tolist()]
            for relation, counts in in_edges.items()
            if schema.relations[relation].feature_dim is not None
        },
        "edge_cut": _fraction(sum(cut.values()), int(of_servers["edges"].sum())),
        "edge_cut_by_relation": {
            str(relation): _fraction(count, schema.relations[relation].count)
            for relation, count in cut.items()
        },
        "balance": {name: imbalance(counts) for name, counts in of_servers.items()},
        "per_server": [
            {name: int(counts[server]) for name, counts in columns.items()}
            for server in range(servers)
        ],
    }


def make_shares(
    graph: SplitGraph, divided: PartitionedGraph, ranks_per_server: int
) -> dict[str, Any]:
    """Make the "shares" entry of partition.json, for servers and for ranks of a second level: of
    the splits of ``graph``, and the whole topology of the same graph, divided."""
    levels = {"servers": 1} | ({"ranks": ranks_per_server} if ranks_per_server > 1 else {})
    return {name: _count_shares(graph, divided, ranks) for name, ranks in levels.items()}


def _count_shares(
    graph: SplitGraph, divided: PartitionedGraph, ranks_per_server: int
) -> dict[str, Any]:
    """Count each rank's nodes by type, in-edges, and roots by split, with largest over mean."""
    placement, schema = divided.placement(ranks_per_server), divided.schema
    owners, target = placement.world, schema.target_type()
    nodes = {name: np.zeros(owners, np.int64) for name in schema.node_types}
    edges = np.zeros(owners, np.int64)
    indptrs = [(relation.dst, divided.topology(relation).indptr) for relation in divided.relations]
    for name, counts in nodes.items():
        total = divided.book.total(name)
        for first in range(0, total, _NODES_AT_ONCE):
            ids = np.arange(first, min(total, first + _NODES_AT_ONCE))
            ranks = placement.rank_of(name, ids)
            counts += np.bincount(ranks, minlength=owners)
            for indptr in (indptr for dst, indptr in indptrs if dst == name):
                degrees = np.diff(indptr[first : first + ids.size + 1])
                # These sums are of floats, which are exact below 2**53.
                edges += np.bincount(ranks, degrees, owners).astype(np.int64)
    global_ids = divided.global_ids(target)

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
