"""Meta-partitioning: whole relations to servers, by sub-metatree (Heta, section 5, Algorithm 2)."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from hopper.errors import RequestError
from hopper.graph.schema import Relation
from hopper.hetero.metagraph import Metagraph, edge_count, node_count
from hopper.hetero.metatree import Metatree, weigh
from hopper.partition.layouts import WHOLE, Part

_MOST_SERVERS: Final = 2**16


class Replica(NamedTuple):
    """Which of the copies of its sub-metatrees a server holds: it trains every ``copies``-th root
    of a batch for them, from ``place`` on."""

    place: int
    copies: int


@dataclass(frozen=True)
class Share:
    """What one server holds.

    Attributes
    ----------
    roots: its root relations, in canonical order.
    replica: of them; (0, 1) where no other server has them.
    part: which part of the edges of its one root relation; (0, 1) where it has all edges of all.
    relations, node_types: all that its sub-metatrees read, each once (step 4, deduplication).
    nodes, edges: of these.
    """

    roots: tuple[Relation, ...]
    replica: Replica
    relations: tuple[Relation, ...]
    node_types: tuple[str, ...]
    nodes: int
    edges: int
    part: Part = WHOLE
    held: Mapping[str, int] = field(default_factory=dict)
    """of a part: how many nodes it has by type"""


@dataclass(frozen=True)
class MetaPartition:
    """Who holds what.

    Attributes
    ----------
    tree: what was divided.
    weights: of each root relation's sub-metatree.
    shares: one per server.
    unreachable: relations that no sub-metatree reads; no server stores them.
    distinct_nodes: of all types that any server holds.
    """

    tree: Metatree
    weights: Mapping[Relation, int]
    shares: tuple[Share, ...]
    unreachable: tuple[Relation, ...]
    distinct_nodes: int

    @property
    def replication(self) -> float:
        """How many servers hold a node, in the mean over those that any holds."""
        return sum(share.nodes for share in self.shares) / max(1, self.distinct_nodes)

    def as_json(self) -> dict[str, Any]:
        """For partition.json."""
        return {
            "target": self.tree.target,
            "others": list(self.tree.others),
            "layers": self.tree.layers,
            "weights": {str(root): weight for root, weight in self.weights.items()},
            "servers": [
                {
                    "roots": [str(each) for each in share.roots],
                    "replica": list(share.replica),
                    "part": list(share.part),
                    "held": dict(share.held),
                    "relations": [str(each) for each in share.relations],
                    "node_types": list(share.node_types),
                    "nodes": share.nodes,
                    "edges": share.edges,
                }
                for share in self.shares
            ],
            "unreachable": [str(each) for each in self.unreachable],
            "replication": self.replication,
        }


def divide(
    metagraph: Metagraph,
    tree: Metatree,
    servers: int,
    weights: Mapping[Relation, int] | None = None,
    cuts: Mapping[Relation, int] | None = None,
) -> MetaPartition:
    """Deal sub-metatrees to servers, the heaviest first to the least loaded (LPT).

    With more servers than sub-metatrees each has a server of its own, and those that are left go
    one by one to the sub-metatree with the largest weight per replica. The parts of a sub-metatree
    that is cut have the last servers for themselves.

    Parameters
    ----------
    weights: by root relation, instead of those of :func:`hopper.hetero.metatree.weigh`; such as
        how often sampling reads them.
    cuts: by root relation, how many parts its sub-metatree is cut into; those not named are whole.

    Raises
    ------
    RequestError: too few or too many servers, or a weight is missing or negative.
    """
    if not 1 <= servers <= _MOST_SERVERS:
        raise RequestError(f"servers: expected 1 to {_MOST_SERVERS:,}, given {servers}")
    roots, cuts = tree.roots, cuts or {}
    if weights is None:
        weights = {root: weigh(metagraph, tree, [root]) for root in roots}
    bad = [str(root) for root in roots if weights.get(root, -1) < 0]
    if bad:
        raise RequestError(f"weights: expected one of at least 0 for {', '.join(bad)}")
    # Heaviest first; among equals the canonical order decides, so that a result is reproducible.
    order = sorted(roots, key=lambda root: (-weights[root], root))
    whole, free = [root for root in order if root not in cuts], servers - sum(cuts.values())
    if free <= len(whole):
        held = _deal(whole, weights, free) if whole else []
        shares = [_share(metagraph, tree, own, Replica(0, 1)) for own in held]
    else:
        shares = [
            _share(metagraph, tree, [root], Replica(place, copies))
            for root, copies in _replicate(whole, weights, free).items()
            for place in range(copies)
        ]
    shares += [
        replace(_share(metagraph, tree, [root], Replica(0, 1)), part=Part(place, parts))
        for root, parts in cuts.items()
        for place in range(parts)
    ]
    read = {relation for share in shares for relation in share.relations}
    unread = sorted(key for _, _, key in metagraph.edges(keys=True) if key not in read)
    types = {each for share in shares for each in share.node_types}
    return MetaPartition(
        tree,
        {root: weights[root] for root in roots},
        tuple(shares),
        tuple(unread),
        sum(node_count(metagraph, each) for each in types),
    )


def _deal(
    order: Sequence[Relation], weights: Mapping[Relation, int], servers: int
) -> list[list[Relation]]:
    # Among equal loads who holds less, so that weights of zero leave no server without a root.
    loads = [(0, 0, server) for server in range(servers)]
    held: list[list[Relation]] = [[] for _ in range(servers)]
    for root in order:
        load, count, server = heapq.heappop(loads)
        held[server].append(root)
        heapq.heappush(loads, (load + weights[root], count + 1, server))
    return held


def _replicate(
    order: Sequence[Relation], weights: Mapping[Relation, int], servers: int
) -> dict[Relation, int]:
    copies = dict.fromkeys(order, 1)
    for _ in range(servers - len(order)):
        # The first of the largest: the order is fixed.
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
        sum(node_count(metagraph, each) for each in types),
        sum(edge_count(metagraph, each) for each in relations),
    )
