"""The partition book: find the home of a node without a table of all nodes.

Global ids are contiguous by server, so a binary search in ``servers + 1`` offsets of the node type
finds the home of a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError


class PartitionBook:
    """Maps global ids of each node type to servers.

    Parameters
    ----------
    servers: number of servers P, at least 1.
    offsets: for each node type ``P + 1`` ascending integers from 0 to the number of nodes. Server i
        stores the global ids in [``offsets[i]``, ``offsets[i + 1]``).
    where: the source of the offsets, for errors.

    Raises
    ------
    GraphError: here, if offsets have a wrong length, do not start at 0, or descend; in methods, of
        an unknown node type or server, or an id outside a type.
    """

    def __init__(
        self,
        servers: int,
        offsets: Mapping[str, Sequence[int] | NDArray[np.int64]],
        where: str = "partition book",
    ) -> None:
        if servers < 1:
            raise GraphError(f"{where}: field 'servers': expected at least 1, found {servers}")
        self.servers = servers
        self.offsets = {name: np.array(bounds, np.int64) for name, bounds in offsets.items()}
        self._where = where
        for name, bounds in self.offsets.items():
            if bounds.shape != (servers + 1,) or bounds[0] != 0 or (np.diff(bounds) < 0).any():
                raise GraphError(
                    f"{where}: field 'offsets.{name}': expected {servers + 1} ascending integers "
                    f"from 0, found {bounds.tolist()!s:.200}"
                )

    def home(self, node_type: str, global_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return [n] int64: the server that stores each node."""
        offsets, ids = self._offsets(node_type), np.asarray(global_ids, dtype=np.int64)
        for wrong in (int(ids.min()), int(ids.max())) if ids.size else ():
            if not 0 <= wrong < offsets[-1]:
                raise GraphError(
                    f"{self._where}: global id {wrong} of node type {node_type!r} is outside "
                    f"[0, {offsets[-1]})"
                )
        # "right" steps over servers that own no node of this type.
        return np.searchsorted(offsets, ids, side="right") - 1

    def range(self, node_type: str, server: int) -> tuple[int, int]:
        """Return the range [first, stop) of global ids that a server stores."""
        offsets = self._offsets(node_type)
        if not 0 <= server < self.servers:
            raise GraphError(f"{self._where}: server {server} of {self.servers} does not exist")
        return int(offsets[server]), int(offsets[server + 1])

    def total(self, node_type: str) -> int:
        """Return the number of nodes of a type that all servers store together."""
        return int(self._offsets(node_type)[-1])

    def _offsets(self, node_type: str) -> NDArray[np.int64]:
        if node_type not in self.offsets:
            names = ", ".join(sorted(self.offsets))
            raise GraphError(
                f"{self._where}: unknown node type {node_type!r}, expected one of: {names}"
            )
        return self.offsets[node_type]
