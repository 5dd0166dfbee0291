"""What servers should have equal shares of: training roots, and other constraints of METIS.

Balance is a multi-constraint problem (DistDGLv2, section 4.1.3). Every constraint is a weight of
each node, and every server should get an equal share of it. DGL's METIS takes several constraints.
pymetis takes a single weight a node, so there one weighted sum is balanced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.array_file import iter_pieces
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import GraphSchema
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.stacked_ids import EdgesOfTypes, count_nodes, type_slices

Ids = NDArray[np.int64]
Full = Callable[..., NDArray[Any]]
SplitGraph = GraphDirectory | PartitionedGraph
"""A graph whose splits are read."""

TYPES: Final = "types"
EDGES: Final = "edges"
# METIS reserves room for 16 constraints, and every class takes two.
MOST_CONSTRAINTS: Final = 16
MOST_CLASSES: Final = MOST_CONSTRAINTS // 2
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


@dataclass(frozen=True)
class Balance:
    """The constraints of which every server should get an equal share."""

    roots: Mapping[str, Ids]
    """by split, "train" always, [nodes of the target type] int64: number of roots at each node"""
    chosen: tuple[str, ...] = ()
    """names of constraints: splits, :data:`TYPES`, :data:`EDGES`; empty = number and degrees of the
    training nodes, and of the other nodes of every type"""

    @classmethod
    def of(cls, graph: SplitGraph, chosen: Sequence[str] = (), full: Full = np.zeros) -> Balance:
        """Count the roots of the splits that are balanced, in arrays that ``full`` makes."""
        splits = {"train", *chosen} - {TYPES, EDGES}
        roots = {split: training_roots(graph, split, full) for split in sorted(splits)}
        return cls(roots, tuple(chosen))

    @property
    def training(self) -> Ids:
        """[nodes of the target type] int64: number of training roots at each node."""
        return self.roots["train"]

    def at(self, ids: Ids) -> Balance:
        """Return the same constraints for some nodes of the target type, by original id."""
        return replace(self, roots={split: counts[ids] for split, counts in self.roots.items()})

    def weights(self, graph: EdgesOfTypes, degrees: Ids, backend: str) -> Ids:
        """Return [nodes, constraints] int64: the weights for METIS, by stacked id. Default
        constraints have ``degrees`` of the symmetric graph; :data:`EDGES` has in-edges."""
        if self.chosen:
            return self._chosen_columns(graph)
        classes = balance_classes(graph.schema, self.training)
        if backend == "pymetis":
            return combined_weight(degrees, classes)[:, np.newaxis]
        in_class = classes[:, np.newaxis] == np.unique(classes)
        return np.hstack([in_class, in_class * degrees[:, np.newaxis]], dtype=np.int64)

    def _chosen_columns(self, graph: EdgesOfTypes) -> Ids:
        """Return [nodes, constraints] int64: those of types or nodes, splits and edges that some
        node has a weight of; the smallest types share a column if METIS has no room for more."""
        schema, ids_of = graph.schema, type_slices(graph.schema)
        splits = [name for name in self.chosen if name in self.roots]
        types, others = 1, len(set(self.chosen) - {TYPES})
        if TYPES in self.chosen:
            types = number_of_constraints(schema, self.chosen) - others
        weights = np.zeros((count_nodes(schema), types + others), np.int64)
        for rank, ids in enumerate(_by_size(schema)):
            weights[ids, min(rank, types - 1)] = 1
        for column, split in enumerate(splits, types):
            weights[ids_of[schema.target_type()], column] = self.roots[split]
        for relation in schema.relations if EDGES in self.chosen else ():
            weights[ids_of[relation.dst], -1] += np.diff(graph.topology(relation).indptr)
        return weights[:, weights.any(axis=0)]


def check_balance(
    chosen: Sequence[str], schema: GraphSchema, method: str, backend: str | None
) -> None:
    """Refuse an unknown or repeated constraint, or a method or METIS that takes no choice."""
    if not chosen:
        return
    choices = [*schema.splits, TYPES, EDGES]
    if len(set(chosen)) < len(chosen) or not set(chosen) <= set(choices):
        raise RequestError(
            f"--balance: expected some of {', '.join(choices)} between commas, each once, given "
            f"{','.join(chosen)!r:.100}"
        )
    if method != "metis":
        raise RequestError(f"--balance: expected --method metis, given {method}")
    if backend != "dgl":
        raise RequestError(
            "--balance: pymetis takes one weight a node, so that it cannot balance several things; "
            "expected the METIS of DGL (--backend dgl)"
        )


def number_of_constraints(schema: GraphSchema, chosen: Sequence[str]) -> int:
    """Return the largest number of weights a node that METIS gets."""
    if not chosen:
        return 2 * min(len(schema.node_types) + 1, MOST_CLASSES)
    types = len(schema.node_types) if TYPES in chosen else 1
    return min(MOST_CONSTRAINTS, types + len(set(chosen) - {TYPES}))


def room_of(totals: Ids, servers: int) -> Ids:
    """Return [constraints] int64: 5 % above a server's equal share, or what must suffice if there
    are few nodes."""
    return np.maximum(-(-totals // servers), (totals * TOLERANCE / servers).astype(np.int64))


def _by_size(schema: GraphSchema) -> list[slice]:
    """Return the stacked ids of each node type, the largest type first."""
    return sorted(type_slices(schema).values(), key=lambda ids: ids.start - ids.stop)


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
    for rank, nodes in enumerate(_by_size(schema)):
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
