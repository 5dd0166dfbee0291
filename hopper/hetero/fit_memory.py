"""Assigns relations to servers of which each may store a limited number of bytes.

A sub-metatree that is too large for a server is cut into parts (:mod:`hopper.hetero.vertex_cut`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import Relation
from hopper.hetero.meta_partition import MetaPartition, divide
from hopper.hetero.metatree import Metatree
from hopper.hetero.vertex_cut import CutPart, cut, part_bytes
from hopper.hetero.write_partition import whole_bytes
from hopper.partition.memory import format_bytes
from hopper.timing.phases import Phases


@dataclass(frozen=True)
class StoredPartition:
    """The parts of a graph divided by relation that each server stores."""

    partition: MetaPartition
    parts: Sequence[CutPart | None]
    """by server, the part that it stores of its only sub-metatree; None = whole sub-metatrees"""
    sizes: Sequence[tuple[int, int]]
    """by server, the bytes of its rows and of its topology"""


def assign_relations(
    graph: GraphDirectory, tree: Metatree, servers: int, memory: int | None, phases: Phases
) -> StoredPartition:
    """Assign sub-metatrees to servers, whole or in parts.

    ``memory`` are the bytes that a server may store, by which sub-metatrees are then weighed, too;
    None = no limit. A :class:`RequestError` says that the number of servers does not fit, or that a
    server would store more however sub-metatrees are cut.
    """
    if memory is None:
        partition = divide(graph.schema, tree, servers)
        sizes = [whole_bytes(graph, share) for share in partition.shares]
        return StoredPartition(partition, [None] * servers, sizes)
    alone = divide(graph.schema, tree, len(tree.roots)).shares
    bytes_of = {share.roots[0]: sum(whole_bytes(graph, share)) for share in alone}
    with phases.phase("cut what is too large for a server"):
        cut_parts = _cut_large(graph, tree, bytes_of, servers, memory)
    cuts = {root: len(parts) for root, parts in cut_parts.items()}
    partition = divide(graph.schema, tree, servers, bytes_of, cuts)
    parts = [
        None if share.is_whole else cut_parts[share.roots[0]][share.part.shard_index]
        for share in partition.shares
    ]
    if cuts:
        partition = _count_parts(graph, partition, parts)
    sizes = []
    for server, (share, part) in enumerate(zip(partition.shares, parts, strict=True)):
        sizes.append(whole_bytes(graph, share) if part is None else part_bytes(graph, part))
        if sum(sizes[-1]) > memory:
            raise RequestError(
                f"--server-memory: server {server} would store {format_bytes(sum(sizes[-1]))} for "
                f"{', '.join(map(str, share.roots))}; expected at most {format_bytes(memory)}; "
                "take more servers, or more memory"
            )
    return StoredPartition(partition, parts, sizes)


def _cut_large(
    graph: GraphDirectory, tree: Metatree, sizes: Mapping[Relation, int], servers: int, memory: int
) -> dict[Relation, list[CutPart]]:
    """Cut the sub-metatrees that are too large for a server, by root relation, of which ``sizes``
    are the bytes; each into as few parts as possible, or into more if servers would have nothing
    else to store."""
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
        parts, largest[root] = 1, sizes[root]
        while largest[root] > memory:
            parts += 1
            if parts > free:
                cut_so_far = f" when it is cut into {parts - 1}" if parts > 2 else ""
                raise RequestError(
                    f"--server-memory: what {root} reads takes {format_bytes(largest[root])} on a "
                    f"server{cut_so_far}; expected at most {format_bytes(memory)}; take more "
                    "servers, or more memory"
                )
            parts_by_root[root], largest[root] = cut_into(root, parts)
        free -= parts
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
    shares, kinds = [], graph.schema.node_types
    is_stored = {name: np.zeros(kind.count, np.bool_) for name, kind in kinds.items()}
    for share, part in zip(partition.shares, parts, strict=True):
        for name in share.node_types:
            is_stored[name] |= True if part is None else part.nodes[name]
        if part is not None:
            counts = {name: int(mask.sum()) for name, mask in part.nodes.items()}
            edges = sum(part.edges.values()) + part.root_edges
            share = replace(share, nodes=sum(counts.values()), edges=edges, stored=counts)
        shares.append(share)
    distinct = sum(int(mask.sum()) for mask in is_stored.values())
    return replace(partition, shares=tuple(shares), distinct_nodes=distinct)
