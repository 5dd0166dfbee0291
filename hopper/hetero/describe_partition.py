"""The description in partition.json of a graph that is divided by relation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import GraphSchema
from hopper.hetero.meta_partition import MetaPartition
from hopper.partition.description import PARTITION_SCHEMA_VERSION
from hopper.partition.training import count_roots


def describe_by_relation(
    graph: GraphDirectory, partition: MetaPartition, sizes: Sequence[tuple[int, int]]
) -> dict[str, Any]:
    """Return what partition.json says of a graph divided by relation.

    Parameters
    ----------
    sizes: by server, the bytes of its rows and of its topology.
    """
    schema, shares = graph.schema, partition.shares
    servers = len(shares)
    nodes = np.array([share.nodes for share in shares])
    edges = np.array([share.edges for share in shares])
    roots = int(count_roots(graph, "train", 1, np.zeros_like).sum())
    # A group is the servers with the same edges of the same root relations. All groups finish
    # equally many roots.
    groups = len({(share.roots, share.part) for share in shares})
    train = [roots // (groups * share.replica.copies) for share in shares]
    return {
        "schema": PARTITION_SCHEMA_VERSION,
        "graph": schema.name,
        "method": "meta",
        "backend": "hopper",
        "servers": servers,
        "seed": 0,
        "seed_used": False,
        "offsets": {
            name: _offsets(schema, partition, name) for name in schema.node_types
        },
        "edge_offsets": {
            # A server that stores the relation stores all features of its edges.
            str(relation): [0] + [edges.count] * servers
            for relation, edges in schema.relations.items()
            if edges.feature_dim is not None
        },
        # Hops never leave the server on which they began.
        "edge_cut": 0.0,
        "balance": {
            name: round(float(values.max() / max(1e-9, values.mean())), 6) if values.any() else 1.0
            for name, values in (("nodes", nodes), ("edges", edges), ("train", np.array(train)))
        },
        "per_server": [
            {"nodes": share.nodes, "edges": share.edges, "train": trained,
             "feature_bytes": rows, "topology_bytes": topology}
            for share, trained, (rows, topology) in zip(shares, train, sizes, strict=True)
        ],
        "topology": "by_relation",
        "meta": partition.as_json(),
    }  # fmt: skip


def _offsets(schema: GraphSchema, partition: MetaPartition, node_type: str) -> list[int]:
    """Return the offsets that say which server owns which nodes of a type.

    Nodes of roots' types are dealt evenly. Those of another type belong to the server that stores
    it and follows most edges out of it, or to the first server if none stores it.
    """
    count, servers = schema.node_types[node_type].count, len(partition.shares)
    if node_type in partition.tree.root_types:
        return [count * server // servers for server in range(servers + 1)]
    followed = [
        sum(schema.relations[r].count for r in share.relations if r.src == node_type)
        if node_type in share.node_types
        else -1
        for share in partition.shares
    ]
    owner = partition.shares[followed.index(max(followed))]
    # If the owner has a part, all parts of the same sub-metatree own equally many nodes.
    owners = [
        share == owner or (owner.part.num_shards > 1 and share.roots == owner.roots)
        for share in partition.shares
    ]
    return [count * before // sum(owners) for before in accumulate(owners, initial=0)]
