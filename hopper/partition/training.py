"""Where the training roots are: what a partition must balance and locality is measured on."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hopper.graph.links import Links
from hopper.graph.schema import GraphSchema


class SplitGraph(Protocol):
    """What a graph directory and a partitioned one have in common here."""

    @property
    def schema(self) -> GraphSchema:
        """The graph's schema."""

    def split(self, name: str) -> NDArray[np.int64]:
        """The ids of a split."""

    def links(self, split: str) -> Links:
        """The edges of a split, by their ends."""


def training_roots(graph: SplitGraph, split: str = "train") -> NDArray[np.int64]:
    """[nodes of the target type] int64, by original id: how many roots of a split stand at each
    node.

    A node split gives ones and zeros. Where edges are predicted, one counts at its destination. A
    missing split gives zeros.
    """
    schema = graph.schema
    target = schema.target_type()
    counts = np.zeros(schema.node_types[target].count, np.int64)
    if split not in schema.splits:
        return counts
    if not schema.target_relations:
        counts[np.asarray(graph.split(split))] = 1
        return counts
    links = graph.links(split)
    into = np.array([each.dst == target for each in schema.target_relations])
    return counts + np.bincount(links.dst[into[links.relations]], minlength=counts.size)
