"""A user-defined partitioner: `--method range_partitioner:RangePartitioner`.

See docs/howto/plug-ins.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopper.graph import GraphDirectory
from hopper.partition.balance import training_roots


class RangePartitioner:
    """Gives every server a range of original ids with an equal share of the work.

    It suits graphs whose neighbours have near ids, such as web pages in order of address. It
    computes no partition.

    Parameters
    ----------
    training_weight: weight of a training node; all other nodes weigh 1.
    """

    def __init__(self, training_weight: float = 10.0) -> None:
        self._training_weight = training_weight

    def assign(
        self, graph: GraphDirectory, servers: int, seed: int
    ) -> dict[str, NDArray[np.int32]]:
        """By node type, [count] int32: the server of each original id."""
        homes = {}
        for node_type, description in graph.schema.node_types.items():
            weights = np.ones(description.count)
            if node_type == graph.schema.target_type():
                weights[training_roots(graph) > 0] = self._training_weight
            # The share of all weight that precedes the middle of a node's own weight.
            before = (np.cumsum(weights) - weights / 2) / max(1.0, weights.sum())
            homes[node_type] = (before * servers).astype(np.int32)
        return homes
