"""Random assignment: counter-based, so it depends on nothing but the seed and original ids."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import absorb_each, key_of
from hopper.graph.schema import GraphSchema

# A word no other stream of draws begins with: a hash, where the streams of docs/draws.md are small.
_STREAM: Final = int.from_bytes(hashlib.sha256(b"partition").digest()[:8], "little")


def assign_random(schema: GraphSchema, servers: int, seed: int) -> dict[str, NDArray[np.int32]]:
    """Deal the nodes of every type to the servers in a random order.

    Node u of type T has the variate ``absorb(key_of(stream, seed, hash of T), u)``; nodes sorted by
    (variate, id) are dealt in turn, the first to server ``hash of T mod servers`` so that the
    odd nodes of many small types do not all land on server 0.

    Returns
    -------
    per node type [count] int32: the server of each original id; the servers' shares of a type
    differ by one node at most.
    """
    homes = {}
    for node_type, described in schema.node_types.items():
        type_key = int.from_bytes(hashlib.sha256(node_type.encode()).digest()[:8], "little")
        ids = np.arange(described.count, dtype=np.int64)
        variates = absorb_each(np.uint64(key_of(_STREAM, seed, type_key)), ids)
        # A stable sort leaves equal variates in the order of their ids.
        order = np.argsort(variates, kind="stable")
        home = np.empty(described.count, np.int32)
        home[order] = (ids + type_key % servers) % servers
        homes[node_type] = home
    return homes
