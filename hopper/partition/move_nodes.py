"""Move nodes to the servers that pull them most, if these have room."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.partition.place_blocks import TOLERANCE

Ids = NDArray[np.int64]

_PASSES: Final = 8


def server_loads(homes: NDArray[np.int32], weights: Ids, servers: int) -> Ids:
    """Return [servers, constraints] int64: the total weights of each server's nodes."""
    loads = np.empty((servers, weights.shape[1]), np.int64)
    for k in range(weights.shape[1]):
        # With weights, bincount returns floats, in which sums below 2**53 are exact.
        loads[:, k] = np.bincount(homes, weights=weights[:, k], minlength=servers)
    return loads


def move_nodes(homes: NDArray[np.int32], pull: NDArray[np.int32], weights: Ids) -> int:
    """Move every node to the server that pulls it most, if that has room; return the number moved.

    Nodes that gain most move first. A server has room for 5 % above the mean of each constraint. A
    server that has more already only loses nodes. The result does not depend on threads.

    Parameters
    ----------
    homes: [nodes] int32, updated.
    pull: [nodes, servers] int32, the gain of each node at each server.
    weights: [nodes, constraints] int64.
    """
    servers = pull.shape[1]
    nodes = np.arange(homes.size)
    gains = pull.max(axis=1) - pull[nodes, homes]
    movable = np.flatnonzero(gains)
    # A stable sort leaves nodes of equal gain in the order of their ids.
    order = movable[np.argsort(-gains[movable], kind="stable")]
    loads, totals = server_loads(homes, weights, servers), weights.sum(axis=0)
    caps = np.maximum(-(-totals // servers), (totals * TOLERANCE / servers).astype(np.int64))
    before = homes.copy()
    for _ in range(_PASSES):
        # Nodes that leave a server make room for others.
        if not _move_once(order, homes, pull, weights, loads, caps):
            break
    return int((homes != before).sum())


@kernel
def _move_once(
    order: Ids,
    homes: NDArray[np.int32],
    pull: NDArray[np.int32],
    weights: Ids,
    loads: Ids,
    caps: Ids,
) -> int:
    """Move nodes, one after another, to the best server with room; return the number moved."""
    moved = 0
    for node in order:
        home = homes[node]
        best = home
        for server in range(pull.shape[1]):
            if pull[node, server] <= pull[node, best]:
                continue
            fits = True
            for k in range(caps.size):
                weight = weights[node, k]
                if weight > 0 and loads[server, k] + weight > caps[k]:
                    fits = False
            if fits:
                best = server
        if best != home:
            for k in range(caps.size):
                loads[home, k] -= weights[node, k]
                loads[best, k] += weights[node, k]
            homes[node] = best
            moved += 1
    return moved
