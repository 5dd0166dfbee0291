"""Where the training roots are: what a partition must balance and locality is measured on."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import kernel
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.topology import Topology


class SplitGraph(Protocol):
    """What a graph directory and a partitioned one have in common here."""

    @property
    def schema(self) -> GraphSchema:
        """The graph's schema."""

    def topology(self, relation: Relation) -> Topology:
        """The in-edges of a relation."""

    def split(self, name: str) -> NDArray[np.int64]:
        """The ids of a split."""


def training_roots(graph: SplitGraph, split: str = "train") -> NDArray[np.int64]:
    """[nodes of the target type] int64: how many roots of a split stand at each node.

    A node split gives ones and zeros by original id. Where the target is a relation, a training
    edge counts at its destination, by the row of the topology (original id in a graph
    directory, global id in a partitioned one). A missing split gives zeros.
    """
    schema = graph.schema
    counts = np.zeros(schema.node_types[schema.target_type()].count, np.int64)
    if split not in schema.splits:
        return counts
    ids = np.asarray(graph.split(split))
    if isinstance(schema.target, str):
        counts[ids] = 1
        return counts
    chosen = np.zeros(schema.relations[schema.target].count, np.bool_)
    chosen[ids] = True
    edges = graph.topology(schema.target)
    _count_chosen(np.asarray(edges.indptr), np.asarray(edges.edge_ids), chosen, counts)
    return counts


@kernel
def _count_chosen(
    indptr: NDArray[np.int64],
    edge_ids: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    counts: NDArray[np.int64],
) -> None:
    for row in range(indptr.size - 1):
        for place in range(indptr[row], indptr[row + 1]):
            counts[row] += chosen[edge_ids[place]]
