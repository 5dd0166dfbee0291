"""Negatives, which are nodes that replace one end of a link: drawn (docs/inside/draws.md), or from
files, as data sets provide them to compare models.

Draws are pure functions of seed, epoch, iteration and the link's id, in original ids. So they
depend neither on how the graph is divided nor on which rank makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.counter import NEGATIVES, absorb_each, below, key_of, variate
from cache_server.kernel import kernel
from hopper.config import Task
from hopper.config.plug_ins import PlugIn, find_plug_in
from hopper.config.task import NEGATIVES as BUILT_INS
from hopper.errors import ConfigError, RequestError
from hopper.graph.importers.source_files import load_npy
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.micrograph.route import GlobalBatch
from hopper.partition import PartitionedGraph
from hopper.tasks.links import LinkTable
from hopper.tasks.target import SIDES, Side, sides_of, type_at

_WEIGHT_ONE: Final = float(1 << 16)


class NegativeSampler(Protocol):
    """The methods of a class of one's own at ``task.negatives``.

    The class is called with the keywords ``counts``, the number of nodes by node type, and
    ``seed``, and with ``task.negatives_options``.
    """

    def draw(
        self,
        heads: Ids,
        tails: Ids,
        relation: Relation,
        side: Side,
        count: int,
        epoch: int,
        iteration: int,
    ) -> Ids:
        """Return the nodes that replace one end of each link: [n, count] int64 original ids.

        The result may depend on nothing but the seed and these arguments, and that of a link not
        on the other links: each rank asks for its own links, whose number depends on the engine.

        Parameters
        ----------
        heads, tails: [n] int64, original ids of the links' ends.
        relation: the relation of all of them.
        side: the end that is replaced, "head" or "tail".
        """
        ...


def find_negatives(task: Task) -> PlugIn[NegativeSampler] | None:
    """Find the class that ``task.negatives`` names; None if it names a built-in. A
    :class:`ConfigError` says what was expected and what came."""
    if task.negatives in BUILT_INS:
        return None
    return find_plug_in(
        "task.negatives",
        task.negatives,
        NegativeSampler,
        {},
        task.negatives_options,
        ["counts", "seed"],
    )


class Negatives:
    """Draws negatives of training links, or reads them from the file that the task names. The seed
    is the first word of the keys after the use."""

    def __init__(self, graph: PartitionedGraph, task: Task, links: LinkTable, seed: int) -> None:
        self._graph, self._task = graph, task
        self._links, self._seed = links, seed
        self._fixed = open_fixed(graph, task, "train")
        self.count = task.num_negatives if self._fixed is None else self._fixed.count
        """negatives of each link and end"""
        plug_in = find_negatives(task)
        counts = {name: kind.count for name, kind in graph.schema.node_types.items()}
        self._own = None if plug_in is None else plug_in.make(counts=counts, seed=seed)

    def draw(self, batch: GlobalBatch, roots: Ids, relation: int, side: Side) -> Ids:
        """Return nodes to replace one end of links by: [n, k] int64 global ids. The links,
        ``roots``, [n] int64, are some of a global batch, all of one target relation, by number."""
        if self._fixed is not None:
            return self._fixed.of(roots, relation, side)
        node_type = type_at(self._links.targets[relation], side)
        globals_ = self._graph.global_ids(node_type)
        if self._own is not None:
            return globals_[self._draw_own(self._own, batch, roots, relation, side)]
        count, moment = self.count, (batch.epoch, batch.iteration)
        if self._task.negatives == "joint":
            # All links of a batch share the negatives of a node type.
            keys = np.array([key_of(NEGATIVES, self._seed, *moment, 2)], np.uint64)
        else:
            key = key_of(NEGATIVES, self._seed, *moment, SIDES.index(side))
            keys = absorb_each(np.uint64(key), self._links.ids[roots])
        if self._task.negatives == "in_batch":
            pool = self._links.ends(node_type, batch.roots)
            negatives = pool[draw_below(keys, count, pool.size)]
        elif self._task.negatives == "degree":
            bounds = self._weights[node_type]
            numbers = draw_below(keys, count, int(bounds[-1]))
            negatives = globals_[np.searchsorted(bounds, numbers, side="right")]
        else:
            negatives = globals_[draw_below(keys, count, globals_.size)]
        return np.broadcast_to(negatives, (roots.size, count))

    def _draw_own(
        self, own: NegativeSampler, batch: GlobalBatch, roots: Ids, relation: int, side: Side
    ) -> Ids:
        """Have a class of the user's own draw, and check what it returns: original ids."""
        target, shape = self._links.targets[relation], (roots.size, self.count)
        nodes = self._graph.schema.node_types[type_at(target, side)].count
        heads = self._graph.original_ids(target.src)[self._links.src[roots]]
        tails = self._graph.original_ids(target.dst)[self._links.dst[roots]]
        moment = batch.epoch, batch.iteration
        drawn = np.asarray(own.draw(heads, tails, target, side, self.count, *moment))
        if drawn.shape != shape or not np.all((drawn >= 0) & (drawn < nodes) & (drawn % 1 == 0)):
            raise ConfigError(
                f"task.negatives: {self._task.negatives}: expected original ids of "
                f"{type_at(target, side)} in [0, {nodes}) of shape "
                f"{list(shape)}, got {' '.join(repr(drawn).split()):.200}"
            )
        return drawn.astype(np.int64)

    @cached_property
    def _weights(self) -> Mapping[str, Ids]:
        """The running sums of nodes' weights: by node type, [nodes] int64 by original id.

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


@kernel
def draw_below(keys: NDArray[np.uint64], count: int, bound: int) -> Ids:
    """Return ``count`` variates of every key in [0, bound): [keys, count] int64."""
    variates = np.empty((keys.size, count), np.int64)
    for i in range(keys.size):
        for j in range(count):
            variates[i, j] = below(variate(keys[i], np.uint64(j)), np.uint64(bound))
    return variates
