"""Nodes move to the servers that they are drawn to, as far as these have room."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.partition.place_blocks import TOLERANCE

Ids = NDArray[np.int64]

_PASSES: Final = 8


def server_loads(homes: NDArray[np.int32], weights: Ids, servers: int) -> Ids:
    """[servers, constraints] int64: what the nodes of each server weigh."""
    loads = np.empty((servers, weights.shape[1]), np.int64)
    for place in range(weights.shape[1]):
        # Sums below 2**53 are exact in the floats that weights make bincount return.
        loads[:, place] = np.bincount(homes, weights=weights[:, place], minlength=servers)
    return loads


def move_nodes(homes: NDArray[np.int32], pull: NDArray[np.int32], weights: Ids) -> int:
    """Move every node to the server that pulls it most, if there is room, those first that gain
    most; returns how many moved.

    A server has room for 5 % above the mean of each constraint. One that has more already loses
    nodes alone. The result depends on no number of threads.

    Parameters
    ----------
    homes: [nodes] int32, written.
    pull: [nodes, servers] int32: what a node would have at each server.
    weights: [nodes, constraints] int64.
    """
    servers = pull.shape[1]
    nodes = np.arange(homes.size)
    gains = pull.max(axis=1) - pull[nodes, homes]
    wishing = np.flatnonzero(gains)
    # A stable sort leaves equal gains in the order of their ids.
    order = wishing[np.argsort(-gains[wishing], kind="stable")]
    loads, totals = server_loads(homes, weights, servers), weights.sum(axis=0)
    caps = np.maximum(-(-totals // servers), (totals * TOLERANCE / servers).astype(np.int64))
    before = homes.copy()
    for _ in range(_PASSES):
        # Those that leave make room for others.
        if not _pass(order, homes, pull, weights, loads, caps):
            break
    return int((homes != before).sum())


@kernel
def _pass(
    order: Ids,
    homes: NDArray[np.int32],
    pull: NDArray[np.int32],
    weights: Ids,
    loads: Ids,
    caps: Ids,
) -> int:
    """Move nodes, one after another, to the best server with room; returns how many moved."""
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
