"""Nodes that links are compared with, from files instead of draws: the same for everybody who
compares models on a data set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopper.config.sections import Task
from hopper.errors import RequestError
from hopper.graph.importers.source_files import load_npy
from hopper.partition import PartitionedGraph
from hopper.tasks.sides import Side, sides_of, type_at

Ids = NDArray[np.int64]


class FixedNegatives:
    """Those of a split, in a file: [links, ends, k] integers, original ids.

    Links are in the order of the split's ids; ends are those that are replaced, the tail first.

    Raises
    ------
    RequestError: the file has another shape, or names a node that there is not.
    GraphError: it is missing, or is not one array in numpy's format.
    """

    def __init__(self, graph: PartitionedGraph, task: Task, split: str) -> None:
        file = Path(task.fixed_negatives[split])
        self._where = f"task.fixed_negatives.{split}: {file}"
        self._split = split
        self._ids = load_npy(file, f"negatives of {split}", mmap_mode="r")
        self._sides = sides_of(task)
        self._graph = graph
        links, found = graph.schema.splits[split], self._ids
        is_whole = found.ndim == 3 and np.issubdtype(found.dtype, np.integer)
        if not is_whole or found.shape[:2] != (links, len(self._sides)) or not found.shape[2]:
            raise RequestError(
                f"{self._where}: expected integers of shape [{links}, {len(self._sides)}, k], one "
                f"row for each link and end ({', '.join(self._sides)}), given {found.dtype} of "
                f"shape {list(found.shape)}"
            )

    @property
    def count(self) -> int:
        """k: for each link and end."""
        return int(self._ids.shape[2])

    def of(self, places: Ids, relation: int, side: Side) -> Ids:
        """[n, k] int64 global ids of what links of one relation are compared with.

        Parameters
        ----------
        places: [n], of the links in their split.
        """
        target = self._graph.schema.target_relations[relation]
        return self._graph.global_ids(type_at(target, side))[self._stored(places, side)]

    def nodes(self, node_type: str) -> Ids:
        """[m] int64 global ids, ascending: all nodes of a type that any link is compared with."""
        found = [stored.reshape(-1) for side, own, stored in self._by_end() if own == node_type]
        every = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
        return np.sort(self._graph.global_ids(node_type)[every])

    def check(self) -> None:
        """Check that all of them are nodes; reads the file once."""
        for side, node_type, found in self._by_end():
            count = self._graph.schema.node_types[node_type].count
            if found.size and not 0 <= found.min() <= found.max() < count:
                raise RequestError(
                    f"{self._where}: expected original ids of {node_type} in [0, {count}) in "
                    f"the place of a {side}, given {found.min()} to {found.max()}"
                )

    def _by_end(self) -> Iterator[tuple[Side, str, Ids]]:
        """Of each target relation's ends that are replaced: which, its type, and original ids."""
        relations = np.asarray(self._graph.links(self._split).relations)
        for number, relation in enumerate(self._graph.schema.target_relations):
            places = np.flatnonzero(relations == number)
            for side in self._sides:
                yield side, type_at(relation, side), self._stored(places, side)

    def _stored(self, places: Ids, side: Side) -> Ids:
        return np.asarray(self._ids[places, self._sides.index(side)], np.int64)


def open_fixed(graph: PartitionedGraph, task: Task, split: str) -> FixedNegatives | None:
    """Those of a split, where the configuration names a file for it; errors as of
    :class:`FixedNegatives`."""
    return FixedNegatives(graph, task, split) if split in task.fixed_negatives else None


def check_fixed(graph: PartitionedGraph, task: Task) -> None:
    """Check all files that a configuration names.

    Raises
    ------
    RequestError, GraphError: as of :class:`FixedNegatives`; the graph has no such split.
    """
    for split in task.fixed_negatives:
        if split not in graph.schema.splits:
            raise RequestError(
                f"task.fixed_negatives: expected splits of {sorted(graph.schema.splits)}, given "
                f"{split!r}"
            )
        FixedNegatives(graph, task, split).check()
