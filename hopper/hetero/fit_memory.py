"""Assigns relations to servers of which each may store a limited number of bytes.

A sub-metatree that is too large for a server is cut into parts (:mod:`hopper.hetero.vertex_cut`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import Relation
from hopper.hetero.meta_partition import MetaPartition, Share, divide
from hopper.hetero.metagraph import Metagraph
from hopper.hetero.metatree import Metatree
from hopper.hetero.vertex_cut import CutPart, cut, part_bytes
from hopper.hetero.write_whole import whole_bytes
from hopper.partition.memory import format_bytes
from hopper.timing.phases import Phases


@dataclass(frozen=True)
class StoredPartition:
    """The parts of a graph divided by relation that each server stores.

    Attributes
    ----------
    partition: the relations of each server.
    parts: by server, the part that it stores of its only sub-metatree; None = it stores its
        sub-metatrees whole.
    sizes: by server, the bytes of its rows and of its topology.
    """

    partition: MetaPartition
    parts: Sequence[CutPart | None]
    sizes: Sequence[tuple[int, int]]


def assign_relations(
    graph: GraphDirectory,
    metagraph: Metagraph,
    tree: Metatree,
    servers: int,
    weights: Mapping[Relation, int] | None,
    memory: int | None,
    phases: Phases,
) -> StoredPartition:
    """Assign sub-metatrees to servers, whole or in parts.

    Parameters
    ----------
    metagraph, tree: the graph's metagraph and metatree.
    weights: the weight of each root relation's sub-metatree; None = by what is stored.
    memory: the bytes that a server may store; None = no limit. If there is a limit, what is stored
        is weighed by its bytes.

    Raises
    ------
    RequestError: the number of servers does not fit, or a server would store more than ``memory``
        however sub-metatrees are cut.
    """
    parts: dict[Relation, list[CutPart]] = {}
    if memory is not None:
        alone = divide(metagraph, tree, len(tree.roots)).shares
        bytes_of = {share.roots[0]: sum(whole_bytes(graph, share)) for share in alone}
        with phases.phase("cut what is too large for a server"):
            parts = _cut_large(graph, tree, bytes_of, servers, memory)
        # The bytes that are limited are also balanced, unless other weights are given.
        weights = weights or bytes_of
    cuts = {root: len(root_parts) for root, root_parts in parts.items()}
    partition = divide(metagraph, tree, servers, weights, cuts)
    part_of = [
        parts[share.roots[0]][share.part.shard_index] if share.part.num_shards > 1 else None
        for share in partition.shares
    ]
    if parts:
        partition = _count_parts(graph, partition, part_of)
    sizes = [
        whole_bytes(graph, share) if part is None else part_bytes(graph, part)
        for share, part in zip(partition.shares, part_of, strict=True)
    ]
    if memory is not None:
        _check_sizes(partition, sizes, memory)
    return StoredPartition(partition, part_of, sizes)


def _cut_large(
    graph: GraphDirectory,
    tree: Metatree,
    sizes: Mapping[Relation, int],
    servers: int,
    memory: int,
) -> dict[Relation, list[CutPart]]:
    """Cut the sub-metatrees that are too large for a server, by root relation.

    Each is cut into as few parts as possible, or into more if servers would have nothing else to
    store.

    Parameters
    ----------
    sizes: the bytes of the whole sub-metatrees.
    """
    large = sorted(
        (root for root in tree.roots if sizes[root] > memory), key=lambda root: (-sizes[root], root)
    )
    free = servers - (len(large) < len(sizes))
    parts_by_root: dict[Relation, list[CutPart]] = {}
    largest: dict[Relation, int] = {}

    def cut_into(root: Relation, parts: int) -> tuple[list[CutPart], int]:
        cut_parts = cut(graph, tree, root, parts)
        return cut_parts, max(sum(part_bytes(graph, part)) for part in cut_parts)

    for root in large:
        largest[root] = sizes[root]
        while largest[root] > memory:
            parts = len(parts_by_root.get(root, [None])) + 1
            if parts > free:
                cut_so_far = f" when it is cut into {parts - 1}" if parts > 2 else ""
                raise RequestError(
                    f"--server-memory: what {root} reads takes {format_bytes(largest[root])} on a "
                    f"server{cut_so_far}; expected at most {format_bytes(memory)}; take more "
                    "servers, or more memory"
                )
            parts_by_root[root], largest[root] = cut_into(root, parts)
        free -= len(parts_by_root[root])
    while free and large and len(large) == len(sizes):
        # Cut the largest parts further. More parts can also store more copies, so check the size.
        for root in sorted(large, key=lambda root: -largest[root]):
            finer, most = cut_into(root, len(parts_by_root[root]) + 1)
            if most <= memory:
                parts_by_root[root], largest[root] = finer, most
                break
        else:
            raise RequestError(
                f"--servers: with {format_bytes(memory)} a server the cut sub-metatrees take "
                f"{servers - free}, and no finer cut fits; expected {servers - free}, given "
                f"{servers}"
            )
        free -= 1
    return parts_by_root


def _count_parts(
    graph: GraphDirectory, partition: MetaPartition, parts: Sequence[CutPart | None]
) -> MetaPartition:
    """Return the partition with the numbers of its parts instead of whole sub-metatrees."""
    shares: list[Share] = []
    is_stored: dict[str, NDArray[np.bool_]] = {
        name: np.zeros(node_type.count, np.bool_)
        for name, node_type in graph.schema.node_types.items()
    }
    for share, part in zip(partition.shares, parts, strict=True):
        for name in share.node_types:
            is_stored[name] |= True if part is None else part.nodes[name]
        if part is None:
            shares.append(share)
            continue
        counts = {name: int(mask.sum()) for name, mask in part.nodes.items()}
        shares.append(
            replace(
                share,
                nodes=sum(counts.values()),
                edges=sum(part.edges.values()) + part.root_edges,
                held=counts,
            )
        )
    distinct = sum(int(mask.sum()) for mask in is_stored.values())
    return replace(partition, shares=tuple(shares), distinct_nodes=distinct)


def _check_sizes(partition: MetaPartition, sizes: Sequence[tuple[int, int]], memory: int) -> None:
    for server, (share, size) in enumerate(zip(partition.shares, sizes, strict=True)):
        if sum(size) > memory:
            raise RequestError(
                f"--server-memory: server {server} would store {format_bytes(sum(size))} for "
                f"{', '.join(map(str, share.roots))}; expected at most {format_bytes(memory)}; "
                "take more servers, or more memory"
            )
