"""What servers should have equal shares of: training roots, and the other nodes of every type.

Balance is a multi-constraint problem (DistDGLv2, section 4.1.3). Every constraint is a weight of
each node, and every server should get an equal share of it. DGL's METIS takes several constraints.
pymetis takes a single weight a node, so there one weighted sum is balanced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph.array_file import iter_pieces
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import GraphSchema
from hopper.graph.topology import Ids
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.stacked_ids import count_nodes, type_slices

Full = Callable[..., NDArray[Any]]
SplitGraph = GraphDirectory | PartitionedGraph
"""A graph whose splits are read."""

# METIS reserves room for 16 constraints, and every class takes two.
MOST_CLASSES: Final = 8
TOLERANCE: Final = 1.05
_RESOLUTION: Final = 16
_MOST_RELATIVE_WEIGHT: Final = 100


def training_roots(graph: SplitGraph, split: str = "train", full: Full = np.zeros) -> Ids:
    """Count a split's roots at each node, by original id: [nodes of the target type] int64, in an
    array that ``full`` makes. A predicted edge counts at its destination; a missing split gives
    zeros."""
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


def metis_weights(schema: GraphSchema, roots: Ids, degrees: Ids, backend: str) -> Ids:
    """Return [nodes, constraints] int64: the weights for METIS, by stacked id, of number and
    ``degrees`` of each class of :func:`balance_classes`."""
    classes = balance_classes(schema, roots)
    if backend == "pymetis":
        return combined_weight(degrees, classes)[:, np.newaxis]
    in_class = classes[:, np.newaxis] == np.unique(classes)
    return np.hstack([in_class, in_class * degrees[:, np.newaxis]], dtype=np.int64)


def number_of_constraints(schema: GraphSchema) -> int:
    """Return the largest number of weights a node that METIS gets."""
    return 2 * min(len(schema.node_types) + 1, MOST_CLASSES)


def room_of(totals: Ids, servers: int) -> Ids:
    """Return [constraints] int64: 5 % above a server's equal share, or what must suffice if there
    are few nodes."""
    return np.maximum(-(-totals // servers), (totals * TOLERANCE / servers).astype(np.int64))


def balance_classes(
    schema: GraphSchema, roots: Ids, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return [nodes of all types] int64, or the dtype of ``out``: each node's class, by stacked id,
    of which every server gets an equal share.

    Class 0 has the nodes with training roots, of which ``roots`` are the numbers, and every other
    class the remaining nodes of a type. With more types than METIS has constraints for, the
    smallest types share the last class.
    """
    classes = np.zeros(count_nodes(schema), np.int64) if out is None else out
    by_size = sorted(type_slices(schema).values(), key=lambda ids: ids.start - ids.stop)
    for rank, nodes in enumerate(by_size):
        classes[nodes] = min(rank + 1, MOST_CLASSES - 1)
    targets = classes[type_slices(schema)[schema.target_type()]]
    for first, counts in iter_pieces(roots):
        targets[first : first + counts.size][counts > 0] = 0
    return classes


def combined_weight(degrees: Ids, classes: Ids) -> Ids:
    """Combine nodes, degrees and training nodes (class 0) in one weight, [nodes] int64, to which
    each gives a third. Few training nodes give less, because a single node that is too heavy cannot
    be balanced."""
    nodes, training = classes.size, int((classes == 0).sum())
    of_degree = degrees * (nodes / max(1, int(degrees.sum())))
    of_training = np.where(classes == 0, min(nodes / max(1, training), _MOST_RELATIVE_WEIGHT), 0)
    weight: Ids = np.rint(_RESOLUTION * (1 + of_degree + of_training)).astype(np.int64)
    return weight
