"""Draws of negatives: nodes that replace one end of a link (docs/inside/draws.md).

Draws are pure functions of seed, epoch, iteration and the link's id, in original ids. So they
depend neither on how the graph is divided nor on which rank makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import NEGATIVES, absorb_each, below, key_of, variate
from cache_server.kernel import kernel
from hopper.config import Task
from hopper.micrograph.route import GlobalBatch
from hopper.partition import PartitionedGraph
from hopper.tasks.sides import SIDES, Side, type_at
from hopper.tasks.training_links import LinkTable

_WEIGHT_ONE: Final = float(1 << 16)

Ids = NDArray[np.int64]


class Negatives:
    """Draws negatives of links.

    Parameters
    ----------
    links: all training links.
    seed: first word of the keys after the use.
    """

    def __init__(self, graph: PartitionedGraph, task: Task, links: LinkTable, seed: int) -> None:
        self._graph, self._task = graph, task
        root_types = graph.schema.root_types
        self._globals = {node_type: graph.global_ids(node_type) for node_type in root_types}
        self._links, self._seed = links, seed

    def draw(self, batch: GlobalBatch, roots: Ids, relation: int, side: Side) -> Ids:
        """Draw negatives of links of one relation: [n, k] int64 global ids.

        Parameters
        ----------
        batch: the global batch of the iteration.
        roots: [n] int64, some of its links, all of ``relation``.
        relation: number of the target relation.
        side: the end that is replaced.
        """
        node_type = type_at(self._links.targets[relation], side)
        count, moment = self._task.num_negatives, (batch.epoch, batch.iteration)
        if self._task.negatives == "joint":
            # All links of a batch share the negatives of a node type.
            keys = np.array([key_of(NEGATIVES, self._seed, *moment, 2)], np.uint64)
        else:
            key = key_of(NEGATIVES, self._seed, *moment, SIDES.index(side))
            keys = absorb_each(np.uint64(key), self._links.ids[roots])
        globals_ = self._globals[node_type]
        if self._task.negatives == "in_batch":
            pool = self._links.ends(node_type, batch.roots)
            negatives = pool[_below(keys, count, pool.size)]
        elif self._task.negatives == "degree":
            bounds = self._weights[node_type]
            numbers = _below(keys, count, int(bounds[-1]))
            negatives = globals_[np.searchsorted(bounds, numbers, side="right")]
        else:
            negatives = globals_[_below(keys, count, globals_.size)]
        return np.broadcast_to(negatives, (roots.size, count))

    @cached_property
    def _weights(self) -> Mapping[str, Ids]:
        """Return the running sums of the nodes' weights: by node type, [nodes] int64 by original
        id.

        A weight is the number of the node's training links to the power of 3/4, in units of 2^-16,
        rounded down. Square roots are correctly rounded, so weights are equal on every machine.
        """
        sums = {}
        for node_type in self._graph.schema.root_types:
            ends = self._links.ends(node_type)
            originals = self._graph.original_ids(node_type)
            counts = np.bincount(originals[ends], minlength=originals.size).astype(np.float64)
            weights = np.sqrt(np.sqrt(counts) * counts) * _WEIGHT_ONE
            sums[node_type] = np.cumsum(weights.astype(np.int64))
        return sums


@kernel
def _below(keys: NDArray[np.uint64], count: int, bound: int) -> Ids:
    """Return ``count`` variates of every key in [0, bound): [keys, count] int64."""
    variates = np.empty((keys.size, count), np.int64)
    for i in range(keys.size):
        for j in range(count):
            variates[i, j] = below(variate(keys[i], np.uint64(j)), np.uint64(bound))
    return variates
