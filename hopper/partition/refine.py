"""The interface of refiners, which move nodes between servers after a method, and the moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cache_server.kernel import kernel
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import GraphSchema
from hopper.partition.balance import Balance, room_of
from hopper.timing.phases import Phases

Ids = NDArray[np.int64]
Homes = NDArray[np.int32]
_PASSES: Final = 8


class Refinement(NamedTuple):
    """The servers of nodes after a refiner has moved some, and its gain."""

    homes: Mapping[str, Homes]
    """by node type, [count] int32: the server of each original id"""
    description: Mapping[str, Any]
    """the "refined" entry of partition.json"""


class Refiner(Protocol):
    """Moves nodes between servers after the method of a division."""

    def check(self, graph: GraphDirectory, servers: int) -> None:
        """Raise a :class:`RequestError`, before the work starts, if the graph cannot be refined."""

    def memory(self, schema: GraphSchema, servers: int, balance: Sequence[str]) -> int:
        """Estimate the bytes of memory that refining takes with some chosen constraints."""

    def refine(
        self,
        graph: GraphDirectory,
        homes: Mapping[str, Homes],
        balance: Balance,
        servers: int,
        phases: Phases,
    ) -> Refinement:
        """Move nodes between servers, which should keep equal shares of what ``balance`` names."""


def server_loads(homes: Homes, weights: Ids, servers: int) -> Ids:
    """Return [servers, constraints] int64: the total weights of each server's nodes."""
    # With weights, bincount returns floats, in which sums below 2**53 are exact.
    columns = [np.bincount(homes, weights=column, minlength=servers) for column in weights.T]
    return np.stack(columns, 1).astype(np.int64)


def move_nodes(homes: Homes, pull: Homes, weights: Ids) -> int:
    """Move every node to the server that pulls it most, if that has room; return the number moved.

    Nodes that gain most move first. A server has room for 5 % above the mean of each constraint. A
    server that has more already only loses nodes. The result does not depend on threads.

    Parameters
    ----------
    homes: [nodes] int32, updated.
    pull: [nodes, servers] int32, the gain of each node at each server.
    weights: [nodes, constraints] int64.
    """
    gains = pull.max(axis=1) - pull[np.arange(homes.size), homes]
    movable = np.flatnonzero(gains)
    # A stable sort leaves nodes of equal gain in the order of their ids.
    order = movable[np.argsort(-gains[movable], kind="stable")]
    loads = server_loads(homes, weights, pull.shape[1])
    room, before = room_of(weights.sum(axis=0), pull.shape[1]), homes.copy()
    for _ in range(_PASSES):
        # Nodes that leave a server make room for others.
        if not _move_once(order, homes, pull, weights, loads, room):
            break
    return int((homes != before).sum())


@kernel
def _move_once(order: Ids, homes: Homes, pull: Homes, weights: Ids, loads: Ids, room: Ids) -> int:
    """Move nodes, one after another, to the best server with room; return the number moved."""
    moved = 0
    for node in order:
        home = homes[node]
        best = home
        for server in range(pull.shape[1]):
            if pull[node, server] <= pull[node, best]:
                continue
            fits = True
            for k in range(room.size):
                weight = weights[node, k]
                fits &= weight == 0 or loads[server, k] + weight <= room[k]
            if fits:
                best = server
        if best != home:
            for k in range(room.size):
                loads[home, k] -= weights[node, k]
                loads[best, k] += weights[node, k]
            homes[node] = best
            moved += 1
    return moved
