"""A partitioner of one's own: `--method range_partitioner:RangePartitioner`.

See docs/plug-ins.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopper.graph import GraphDirectory
from hopper.partition.training import training_roots


class RangePartitioner:
    """Ranges of original ids with equal shares of the work.

    For graphs whose ids mean something already, such as web pages in the order of their addresses:
    nothing has to be computed, and neighbours are often near.

    Parameters
    ----------
    training_weight: what a training node weighs; all others weigh 1.
    """

    def __init__(self, training_weight: float = 10.0) -> None:
        self._training_weight = training_weight

    def assign(
        self, graph: GraphDirectory, servers: int, seed: int
    ) -> dict[str, NDArray[np.int32]]:
        """By node type, [count] int32: the server of each original id."""
        homes = {}
        for node_type, described in graph.schema.node_types.items():
            weights = np.ones(described.count)
            if node_type == graph.schema.target_type():
                weights[training_roots(graph) > 0] = self._training_weight
            # What lies before a node's middle, as a share.
            before = (np.cumsum(weights) - weights / 2) / max(1.0, weights.sum())
            homes[node_type] = (before * servers).astype(np.int32)
        return homes
