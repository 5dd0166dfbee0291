"""Meta-partitioning: assigns whole relations to servers, one sub-metatree after the other.

Heta, section 5, Algorithm 2.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from hopper.errors import RequestError
from hopper.graph.schema import Relation
from hopper.hetero.metagraph import Metagraph, edge_count, node_count
from hopper.hetero.metatree import Metatree, weigh
from hopper.partition.description import WHOLE, Part

_MOST_SERVERS: Final = 2**16


class Replica(NamedTuple):
    """The copy of its sub-metatrees that a server holds.

    It aggregates them for every ``copies``-th root of a batch, beginning with root ``place``.
    """

    place: int
    copies: int


@dataclass(frozen=True)
class Share:
    """The relations and node types that one server stores.

    Attributes
    ----------
    roots: its root relations, in canonical order.
    replica: which copy of them it holds; (0, 1) if no other server has them.
    relations, node_types: all that its sub-metatrees read, each once (step 4, deduplication).
    nodes, edges: how many there are of these.
    part: which part of the edges of its only root relation it has; (0, 1) if it has all edges of
        all root relations.
    """

    roots: tuple[Relation, ...]
    replica: Replica
    relations: tuple[Relation, ...]
    node_types: tuple[str, ...]
    nodes: int
    edges: int
    part: Part = WHOLE
    held: Mapping[str, int] = field(default_factory=dict)
    """how many nodes it has, by type, if it has a part"""


@dataclass(frozen=True)
class MetaPartition:
    """The division of a metatree over servers.

    Attributes
    ----------
    tree: the metatree that was divided.
    weights: the weight of each root relation's sub-metatree.
    shares: what each server stores.
    unreachable: the relations that no sub-metatree reads and no server stores.
    distinct_nodes: how many nodes there are of all types that any server stores.
    """

    tree: Metatree
    weights: Mapping[Relation, int]
    shares: tuple[Share, ...]
    unreachable: tuple[Relation, ...]
    distinct_nodes: int

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
            "servers": [
                {
                    "roots": [str(relation) for relation in share.roots],
                    "replica": list(share.replica),
                    "part": list(share.part),
                    "held": dict(share.held),
                    "relations": [str(relation) for relation in share.relations],
                    "node_types": list(share.node_types),
                    "nodes": share.nodes,
                    "edges": share.edges,
                }
                for share in self.shares
            ],
            "unreachable": [str(relation) for relation in self.unreachable],
            "replication": self.replication,
        }


def divide(
    metagraph: Metagraph,
    tree: Metatree,
    servers: int,
    weights: Mapping[Relation, int] | None = None,
    cuts: Mapping[Relation, int] | None = None,
) -> MetaPartition:
    """Assign sub-metatrees to servers, the heaviest first to the least loaded (LPT).

    If there are more servers than sub-metatrees, each sub-metatree has a server for itself. Each
    remaining server goes to the sub-metatree with the largest weight per replica. Each part of a
    sub-metatree that is cut has one of the last servers for itself.

    Parameters
    ----------
    weights: the weight of each root relation, such as how often sampling reads it; None = those of
        :func:`hopper.hetero.metatree.weigh`.
    cuts: the number of parts into which a root relation's sub-metatree is cut; relations without an
        entry stay whole.

    Raises
    ------
    RequestError: too few or too many servers, or a weight is missing or negative.
    """
    if not 1 <= servers <= _MOST_SERVERS:
        raise RequestError(f"servers: expected 1 to {_MOST_SERVERS:,}, given {servers}")
    roots, cuts = tree.roots, cuts or {}
    if weights is None:
        weights = {root: weigh(metagraph, tree, [root]) for root in roots}
    invalid = [str(root) for root in roots if weights.get(root, -1) < 0]
    if invalid:
        raise RequestError(f"weights: expected one of at least 0 for {', '.join(invalid)}")
    # Among equal weights the canonical order decides, so that a result is reproducible.
    order = sorted(roots, key=lambda root: (-weights[root], root))
    whole, free = [root for root in order if root not in cuts], servers - sum(cuts.values())
    if free <= len(whole):
        roots_by_server = _deal(whole, weights, free) if whole else []
        shares = [
            _share(metagraph, tree, server_roots, Replica(0, 1)) for server_roots in roots_by_server
        ]
    else:
        shares = [
            _share(metagraph, tree, [root], Replica(copy, copies))
            for root, copies in _replicate(whole, weights, free).items()
            for copy in range(copies)
        ]
    shares += [
        replace(_share(metagraph, tree, [root], Replica(0, 1)), part=Part(part, parts))
        for root, parts in cuts.items()
        for part in range(parts)
    ]
    read_relations = {relation for share in shares for relation in share.relations}
    unread = sorted(key for _, _, key in metagraph.edges(keys=True) if key not in read_relations)
    types = {node_type for share in shares for node_type in share.node_types}
    return MetaPartition(
        tree,
        {root: weights[root] for root in roots},
        tuple(shares),
        tuple(unread),
        sum(node_count(metagraph, node_type) for node_type in types),
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


def _share(
    metagraph: Metagraph, tree: Metatree, roots: Sequence[Relation], replica: Replica
) -> Share:
    relations, types = tree.relations_of(roots), tree.types_of(roots)
    return Share(
        tuple(sorted(roots)),
        replica,
        tuple(relations),
        tuple(types),
        sum(node_count(metagraph, node_type) for node_type in types),
        sum(edge_count(metagraph, relation) for relation in relations),
    )
