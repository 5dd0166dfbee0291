"""Negatives from files instead of draws, as data sets provide them to compare models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopper.config import Task
from hopper.errors import RequestError
from hopper.graph.importers.source_files import load_npy
from hopper.partition import PartitionedGraph
from hopper.tasks.target import Side, sides_of, type_at

Ids = NDArray[np.int64]


class FixedNegatives:
    """The negatives of a split, from a file of original ids [links, ends, k].

    Links are in the order of the split's ids. Ends are those that are replaced, the tail first. A
    :class:`RequestError` says that the file has another shape or dtype, a :class:`GraphError` that
    it is missing or is not an array in numpy's format.
    """

    def __init__(self, graph: PartitionedGraph, task: Task, split: str) -> None:
        file = Path(task.fixed_negatives[split])
        self._where = f"task.fixed_negatives.{split}: {file}"
        self._graph, self._split, self._sides = graph, split, sides_of(task)
        self._ids = ids = load_npy(file, f"negatives of {split}", mmap_mode="r")
        links = graph.schema.splits[split]
        is_valid = ids.ndim == 3 and np.issubdtype(ids.dtype, np.integer)
        if not is_valid or ids.shape[:2] != (links, len(self._sides)) or not ids.shape[2]:
            raise RequestError(
                f"{self._where}: expected integers of shape [{links}, {len(self._sides)}, k], one "
                f"row for each link and end ({', '.join(self._sides)}), given {ids.dtype} of "
                f"shape {list(ids.shape)}"
            )

    @property
    def count(self) -> int:
        """k, the number of negatives for each link and end."""
        return int(self._ids.shape[2])

    def of(self, places: Ids, relation: int, side: Side) -> Ids:
        """Return the negatives, [n, k] int64 global ids, at an end of the links at ``places`` ([n]
        int64) of the split, all of which are of one target relation, by number."""
        target = self._graph.schema.target_relations[relation]
        return self._graph.global_ids(type_at(target, side))[self._stored(places, side)]

    def nodes(self, node_type: str) -> Ids:
        """Return all nodes of a type that are negatives: [m] int64 global ids, ascending."""
        parts = [ids.reshape(-1) for _, end_type, ids in self._by_end() if end_type == node_type]
        distinct = np.unique(np.concatenate([np.empty(0, np.int64), *parts]))
        return np.sort(self._graph.global_ids(node_type)[distinct])

    def check(self) -> None:
        """Read the whole file, and refuse (:class:`RequestError`) ids that no node has."""
        for side, node_type, ids in self._by_end():
            count = self._graph.schema.node_types[node_type].count
            if ids.size and not 0 <= ids.min() <= ids.max() < count:
                raise RequestError(
                    f"{self._where}: expected original ids of {node_type} in [0, {count}) in "
                    f"the place of a {side}, given {ids.min()} to {ids.max()}"
                )

    def _by_end(self) -> Iterator[tuple[Side, str, Ids]]:
        """Yield, for each replaced end of each target relation, its side, node type and ids."""
        relations = np.asarray(self._graph.links(self._split).relations)
        for number, relation in enumerate(self._graph.schema.target_relations):
            places = np.flatnonzero(relations == number)
            for side in self._sides:
                yield side, type_at(relation, side), self._stored(places, side)

    def _stored(self, places: Ids, side: Side) -> Ids:
        return np.asarray(self._ids[places, self._sides.index(side)], np.int64)


def open_fixed(graph: PartitionedGraph, task: Task, split: str) -> FixedNegatives | None:
    """Open a split's negatives; None if the configuration names no file for the split."""
    return FixedNegatives(graph, task, split) if split in task.fixed_negatives else None


def check_fixed(graph: PartitionedGraph, task: Task) -> None:
    """Check all files of negatives that a configuration names, and that the graph has the splits;
    errors are those of :class:`FixedNegatives`."""
    for split in task.fixed_negatives:
        if split not in graph.schema.splits:
            raise RequestError(
                f"task.fixed_negatives: expected splits of {sorted(graph.schema.splits)}, given "
                f"{split!r}"
            )
        FixedNegatives(graph, task, split).check()
