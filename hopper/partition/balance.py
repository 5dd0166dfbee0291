"""The constraints that servers should have equal shares of, as weights of nodes.

Balance is a multi-constraint problem (DistDGLv2, section 4.1.3). Every constraint is a weight of
each node, and every server should get an equal share of it. DGL's METIS takes several constraints.
pymetis takes a single weight a node, so there one weighted sum is balanced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.array_file import iter_pieces
from hopper.graph.schema import GraphSchema
from hopper.partition.metis import Adjacency, Backend
from hopper.partition.stacked_ids import EdgesOfTypes, count_nodes, type_starts
from hopper.partition.training import SplitGraph, training_roots

Ids = NDArray[np.int64]

TYPES: Final = "types"
EDGES: Final = "edges"
# METIS reserves room for 16 constraints, and every class takes two.
MOST_CONSTRAINTS: Final = 16
MOST_CLASSES: Final = MOST_CONSTRAINTS // 2
TOLERANCE: Final = 1.05
_RESOLUTION: Final = 16
_MOST_RELATIVE_WEIGHT: Final = 100
_OTHER_METHODS: Final[Mapping[str, str]] = {
    "stream": "stream always balances training nodes, and of every type the other nodes",
    "random": "random deals the nodes of every type evenly, whatever they are",
}


@dataclass(frozen=True)
class Balance:
    """The constraints of which every server should get an equal share."""

    roots: Mapping[str, Ids]
    """by split, "train" always, [nodes of the target type] int64: number of roots at each node"""
    chosen: tuple[str, ...] = ()
    """names of constraints: splits, :data:`TYPES`, :data:`EDGES`; empty = number and degrees of the
    training nodes, and of the other nodes of every type"""

    @classmethod
    def of(
        cls,
        graph: SplitGraph,
        chosen: Sequence[str] = (),
        full: Callable[..., NDArray[Any]] = np.zeros,
    ) -> Balance:
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

    def weights(self, graph: EdgesOfTypes, adjacency: Adjacency, backend: Backend) -> Ids:
        """Return [nodes, constraints] int64: the weights for METIS, by stacked id.

        Default constraints have the degrees of ``adjacency``; :data:`EDGES` has in-edges of
        relations.
        """
        if self.chosen:
            return self._chosen_columns(graph)
        classes, degrees = balance_classes(graph.schema, self.training), np.diff(adjacency.indptr)
        if backend == "pymetis":
            return combined_weight(degrees, classes)[:, np.newaxis]
        in_class = classes[:, np.newaxis] == np.unique(classes)
        return np.hstack([in_class, in_class * degrees[:, np.newaxis]], dtype=np.int64)

    def balanced_weights(self, graph: EdgesOfTypes) -> Ids:
        """Return [nodes, constraints] int64, by stacked id: the weights that moves of single nodes
        keep even, which are the chosen constraints, or else nodes by class and in-edges."""
        if self.chosen:
            return self._chosen_columns(graph)
        classes = balance_classes(graph.schema, self.training)
        in_class = classes[:, np.newaxis] == np.unique(classes)
        return np.hstack([in_class, _in_degrees(graph)[:, np.newaxis]], dtype=np.int64)

    def _chosen_columns(self, graph: EdgesOfTypes) -> Ids:
        """Return [nodes, constraints] int64: the chosen ones that some node has a weight of."""
        schema = graph.schema
        nodes, columns = count_nodes(schema), _type_columns(schema, self.chosen)
        start = type_starts(schema)[schema.target_type()]
        for split in self.chosen:
            if split in self.roots:
                columns.append(np.zeros(nodes, np.int64))
                columns[-1][start : start + self.roots[split].size] = self.roots[split]
        if EDGES in self.chosen:
            columns.append(_in_degrees(graph))
        return np.stack([column for column in columns if column.any()], 1)


def check_balance(
    chosen: Sequence[str], schema: GraphSchema, method: str, backend: Backend | None
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
        what = _OTHER_METHODS.get(method, f"what {method} balances is its own choice")
        raise RequestError(f"--balance: only --method metis takes a choice; {what}")
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


def _in_degrees(graph: EdgesOfTypes) -> Ids:
    """Return [nodes] int64: number of in-edges of all relations, by stacked id."""
    degrees, starts = np.zeros(count_nodes(graph.schema), np.int64), type_starts(graph.schema)
    for relation in graph.schema.relations:
        indptr, start = graph.topology(relation).indptr, starts[relation.dst]
        degrees[start : start + indptr.size - 1] += np.diff(indptr)
    return degrees


def _type_columns(schema: GraphSchema, chosen: Sequence[str]) -> list[Ids]:
    """Return a column [nodes] with ones at each type's nodes, or a single one for all types; the
    smallest types share the last column if METIS has no room for more."""
    most = 1
    if TYPES in chosen:
        most = number_of_constraints(schema, chosen) - len(set(chosen) - {TYPES})
    columns = [np.zeros(count_nodes(schema), np.int64) for _ in range(most)]
    for rank, nodes in enumerate(_by_size(schema)):
        columns[min(rank, most - 1)][nodes] = 1
    return columns


def _by_size(schema: GraphSchema) -> list[slice]:
    """Return the stacked ids of each node type, the largest type first."""
    types, starts = schema.node_types, type_starts(schema)
    names = sorted(types, key=lambda name: -types[name].count)
    return [slice(starts[name], starts[name] + types[name].count) for name in names]


def balance_classes(
    schema: GraphSchema, roots: Ids, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return [nodes of all types] int64, or the dtype of ``out``: each node's class, by stacked id.

    The share of every class is balanced. Class 0 has the nodes with training roots, of which
    ``roots`` are the numbers, and every other class the remaining nodes of a type. With more types
    than METIS has constraints for, the smallest types share the last class.
    """
    classes = np.zeros(count_nodes(schema), np.int64) if out is None else out
    for rank, nodes in enumerate(_by_size(schema)):
        classes[nodes] = min(rank + 1, MOST_CLASSES - 1)
    target = type_starts(schema)[schema.target_type()]
    for first, counts in iter_pieces(roots):
        classes[target + first : target + first + counts.size][counts > 0] = 0
    return classes


def combined_weight(degrees: Ids, classes: Ids) -> Ids:
    """Combine nodes, degrees and training nodes (class 0) in one weight: [nodes] int64.

    Each gives a third of the total. If there are few training nodes, they give less, because a
    single node that is too heavy cannot be balanced.
    """
    nodes, training = classes.size, int((classes == 0).sum())
    of_degree = degrees * (nodes / max(1, int(degrees.sum())))
    of_training = np.where(classes == 0, min(nodes / max(1, training), _MOST_RELATIVE_WEIGHT), 0)
    weight: Ids = np.rint(_RESOLUTION * (1 + of_degree + of_training)).astype(np.int64)
    return weight
