"""Meta-partitioning: assigns whole relations to servers, one sub-metatree after the other.

Heta, section 5, Algorithm 2.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema, Relation
from hopper.hetero.metatree import Metatree, weigh
from hopper.partition.description import Part, ServerPartition

_MOST_SERVERS: Final = 2**16


@dataclass(frozen=True)
class MetaPartition:
    """The division of a metatree over servers."""

    tree: Metatree
    weights: Mapping[Relation, int]
    """of each root relation's sub-metatree"""
    shares: tuple[ServerPartition, ...]
    """what each server stores"""
    unreachable: tuple[Relation, ...]
    """the relations that no sub-metatree reads and no server stores"""
    distinct_nodes: int
    """number of nodes that any server stores"""

    @property
    def replication(self) -> float:
        """The mean number of servers that store a node, over all nodes that any server stores."""
        return sum(share.nodes for share in self.shares) / max(1, self.distinct_nodes)

    def as_json(self) -> dict[str, Any]:
        """Return the partition as it is written to partition.json."""
        return {
            "target": self.tree.target,
            "others": list(self.tree.others),
            "layers": self.tree.layers,
            "weights": {str(root): weight for root, weight in self.weights.items()},
            "servers": [share.as_json() for share in self.shares],
            "unreachable": [str(relation) for relation in self.unreachable],
            "replication": self.replication,
        }


def divide(
    schema: GraphSchema,
    tree: Metatree,
    servers: int,
    weights: Mapping[Relation, int] | None = None,
    cuts: Mapping[Relation, int] | None = None,
) -> MetaPartition:
    """Assign sub-metatrees to servers, the heaviest first to the least loaded (LPT).

    If there are more servers than sub-metatrees, each sub-metatree has a server for itself. Each
    remaining server goes to the sub-metatree with the largest weight per replica. The weights of
    root relations are those of :func:`hopper.hetero.metatree.weigh` unless they are given. Each
    part of a sub-metatree has one of the last servers for itself, if ``cuts`` gives the number of
    its parts. A :class:`RequestError` says that the number of servers or a weight is impossible.
    """
    if not 1 <= servers <= _MOST_SERVERS:
        raise RequestError(f"servers: expected 1 to {_MOST_SERVERS:,}, given {servers}")
    roots, cuts = tree.roots, cuts or {}
    if weights is None:
        weights = {root: weigh(schema, tree, [root]) for root in roots}
    invalid = [str(root) for root in roots if weights.get(root, -1) < 0]
    if invalid:
        raise RequestError(f"weights: expected one of at least 0 for {', '.join(invalid)}")
    # Among equal weights the canonical order decides, so that a result is reproducible.
    order = sorted(roots, key=lambda root: (-weights[root], root))
    whole, free = [root for root in order if root not in cuts], servers - sum(cuts.values())
    if free <= len(whole):
        by_server = _deal(whole, weights, free) if whole else []
        shares = [_share(schema, tree, server_roots) for server_roots in by_server]
    else:
        shares = [
            replace(_share(schema, tree, [root]), place=place, copies=copies)
            for root, copies in _replicate(whole, weights, free).items()
            for place in range(copies)
        ]
    shares += [
        replace(_share(schema, tree, [root]), part=Part(part, parts))
        for root, parts in cuts.items()
        for part in range(parts)
    ]
    read = {relation for share in shares for relation in share.relations}
    types = {node_type for share in shares for node_type in share.node_types}
    return MetaPartition(
        tree,
        {root: weights[root] for root in roots},
        tuple(shares),
        tuple(relation for relation in schema.ordered_relations() if relation not in read),
        sum(schema.node_types[node_type].count for node_type in types),
    )


def _deal(
    order: Sequence[Relation], weights: Mapping[Relation, int], servers: int
) -> list[list[Relation]]:
    # Among equal loads the server with fewest roots is next. Otherwise weights of zero could leave
    # a server without any.
    loads = [(0, 0, server) for server in range(servers)]
    roots_by_server: list[list[Relation]] = [[] for _ in range(servers)]
    for root in order:
        load, count, server = heapq.heappop(loads)
        roots_by_server[server].append(root)
        heapq.heappush(loads, (load + weights[root], count + 1, server))
    return roots_by_server


def _replicate(
    order: Sequence[Relation], weights: Mapping[Relation, int], servers: int
) -> dict[Relation, int]:
    copies = dict.fromkeys(order, 1)
    for _ in range(servers - len(order)):
        # max returns the first of several, so the result is reproducible.
        largest = max(order, key=lambda root: weights[root] / copies[root])
        copies[largest] += 1
    return copies


def _share(schema: GraphSchema, tree: Metatree, roots: Sequence[Relation]) -> ServerPartition:
    """Return what a server with some whole root relations stores: all that their sub-metatrees
    read, each once (step 4, deduplication)."""
    relations, types = tree.relations_of(roots), tree.types_of(roots)
    return ServerPartition(
        tuple(sorted(roots)),
        0,
        1,
        frozenset(relations),
        frozenset(types),
        nodes=sum(schema.node_types[node_type].count for node_type in types),
        edges=sum(schema.relations[relation].count for relation in relations),
    )
