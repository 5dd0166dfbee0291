"""Assign nodes at random by counter-based draws, which depend on seed and original ids alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.counter import absorb_each, key_of
from hopper.graph.memory_budget import memory_budget
from hopper.graph.schema import GraphSchema
from hopper.partition.stacked_ids import NodeArrays

_BYTES_A_NODE: Final = 64


def hash_word(text: str) -> int:
    """Return the first eight bytes of a text's SHA-256, little-endian.

    No stream of draws of docs/inside/draws.md begins with such a word: they begin with small
    numbers.
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def assign_random(
    schema: GraphSchema, servers: int, seed: int, arrays: NodeArrays
) -> dict[str, NDArray[np.int32]]:
    """Deal the nodes of every type to the servers in a random order.

    Node u of type T has the variate ``absorb(key_of(stream, seed, hash of T), u)``. Nodes are
    sorted by (variate, id) and dealt in turn. The first goes to server ``hash of T mod servers``,
    so that the nodes left over of many small types do not all go to server 0. The servers' shares
    of a type differ by one node at most.
    """
    homes = {}
    for node_type, kind in schema.node_types.items():
        home = homes[node_type] = arrays.full(kind.count, np.int32)
        dealt = hash_word(node_type)
        key = np.uint64(key_of(hash_word("partition"), seed, dealt))
        for ids, variates in _by_variate(key, home.size):
            # A stable sort leaves equal variates in the order of their ids.
            order = np.argsort(variates, kind="stable")
            home[ids[order]] = (np.arange(ids.size) + dealt % servers) % servers
            dealt += ids.size
    return homes


def _by_variate(
    key: np.uint64, count: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
    """Iterate over ranges of variates, to limit memory; yield the ids of each range, ascending, and
    their variates."""
    size = memory_budget()
    at_once = max(8 * size.chunk, size.resident // 8) // _BYTES_A_NODE
    ranges = -(-count // at_once)
    bounds = [2**64 * number // max(1, ranges) for number in range(ranges + 1)]
    for low, high in pairwise(bounds):
        pieces = []
        for first in range(0, count, at_once):
            ids = np.arange(first, min(count, first + at_once))
            variates = absorb_each(key, ids)
            in_range = (variates >= np.uint64(low)) & (variates <= np.uint64(high - 1))
            pieces.append((ids[in_range], variates[in_range]))
        ids, variates = (np.concatenate(column) for column in zip(*pieces, strict=True))
        yield ids, variates
