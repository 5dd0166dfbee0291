"""Count the training roots at nodes and servers, which partitions balance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hopper.graph.array_file import iter_pieces
from hopper.graph.links import Links
from hopper.graph.schema import GraphSchema

Ids = NDArray[np.int64]


class SplitGraph(Protocol):
    """The splits of a graph directory or a partitioned directory."""

    @property
    def schema(self) -> GraphSchema:
        """The graph's schema."""

    def split(self, name: str) -> Ids:
        """Return the ids of a split."""

    def links(self, split: str) -> Links:
        """Return the edges of a split, by their ends."""


def training_roots(
    graph: SplitGraph, split: str = "train", full: Callable[..., NDArray[Any]] = np.zeros
) -> Ids:
    """Count a split's roots at each node, by original id: [nodes of the target type] int64.

    An edge that is predicted counts at its destination. A missing split gives zeros.

    Parameters
    ----------
    full: makes an array of zeros of a length and dtype.
    """
    schema = graph.schema
    counts: Ids = full(schema.node_types[schema.target_type()].count, np.int64)
    for nodes in _root_nodes(graph, split):
        np.add.at(counts, nodes, 1)
    return counts


def count_roots(graph: SplitGraph, split: str, owners: int, owner_of: Callable[[Ids], Ids]) -> Ids:
    """Count a split's roots at each owner's nodes, [owners] int64; ``owner_of`` returns the owners
    of original ids of the target type."""
    pieces = (np.bincount(owner_of(nodes), minlength=owners) for nodes in _root_nodes(graph, split))
    return sum(pieces, np.zeros(owners, np.int64))


def _root_nodes(graph: SplitGraph, split: str) -> Iterator[Ids]:
    """Iterate in pieces over the target node of each root of a split."""
    schema = graph.schema
    if split not in schema.splits:
        return
    if schema.target_relations:
        links, target = graph.links(split), schema.target_type()
        is_into_target = np.array([relation.dst == target for relation in schema.target_relations])
        yield links.dst[is_into_target[links.relations]]
    else:
        for _, nodes in iter_pieces(graph.split(split)):
            yield np.asarray(nodes)
