"""Which roots an iteration trains, which model owns them and which rank is their home.

Every rank derives the same answers from the configuration alone: no communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import permuted
from hopper.partition.placement import Placement


@dataclass(frozen=True)
class GlobalBatch:
    """The N mini-batches of one iteration together.

    roots: [n] int64 global ids of the target type, or places of links among the training links,
        mini-batch after mini-batch.
    bounds: [N + 1] int64, mini-batch d is ``roots[bounds[d]:bounds[d + 1]]``.
    home_ranks: [n] int64, the rank that owns each root.
    """

    epoch: int
    iteration: int
    roots: NDArray[np.int64]
    bounds: NDArray[np.int64]
    home_ranks: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Number of roots, the divisor of the loss."""
        return int(self.roots.size)

    @property
    def where(self) -> str:
        """The iteration, as errors name it."""
        return f"epoch {self.epoch}, iteration {self.iteration}"

    @cached_property
    def models(self) -> NDArray[np.int64]:
        """[n] int64: the model that owns each root."""
        return np.repeat(np.arange(self.bounds.size - 1), np.diff(self.bounds))

    def of_model(self, model: int) -> NDArray[np.int64]:
        """Mini-batch ``model``: the roots it owns."""
        return self.roots[self.bounds[model] : self.bounds[model + 1]]

    def homed_at(self, rank: int) -> NDArray[np.int64]:
        """All roots whose home is ``rank``, in batch order."""
        return self.roots[self.home_ranks == rank]

    def group(self, model: int, rank: int) -> NDArray[np.int64]:
        """Group (model, rank): the model's roots whose home is ``rank``; may be empty."""
        part = slice(self.bounds[model], self.bounds[model + 1])
        return self.roots[part][self.home_ranks[part] == rank]


class TrainingRoots(Protocol):
    """The roots that are trained, counted in an order that does not depend on how the graph is
    divided."""

    @property
    def count(self) -> int:
        """How many there are."""

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """[m] int64: the roots at some places of that order, as :class:`GlobalBatch` has them."""

    def home_ranks(self, roots: NDArray[np.int64]) -> NDArray[np.int64]:
        """[m] int64: the rank that owns each."""


@dataclass(frozen=True)
class TrainingNodes:
    """Nodes as roots.

    Attributes
    ----------
    placement: who owns them. node_type: theirs.
    ids: [n] int64 original ids, ascending.
    global_ids: [count] int64, global id of every original id of the type.
    """

    placement: Placement
    node_type: str
    ids: NDArray[np.int64]
    global_ids: NDArray[np.int64]

    @property
    def count(self) -> int:
        """See :class:`TrainingRoots`."""
        return int(self.ids.size)

    def at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """See :class:`TrainingRoots`: global ids."""
        return self.global_ids[self.ids[places]]

    def home_ranks(self, roots: NDArray[np.int64]) -> NDArray[np.int64]:
        """See :class:`TrainingRoots`."""
        return self.placement.rank_of(self.node_type, roots)


class RootSchedule:
    """The global batches of every epoch.

    Parameters
    ----------
    roots: all that are trained.
    seed: first word of the permutation's key.
    batch_size: roots a model and iteration.
    models: number of models N.
    drop_last: leave out an incomplete last global batch.
    most_iterations: bound of an epoch's iterations; 0 = none.
    """

    def __init__(
        self,
        roots: TrainingRoots,
        *,
        seed: int,
        batch_size: int,
        models: int,
        drop_last: bool = False,
        most_iterations: int = 0,
    ) -> None:
        self._roots = roots
        self._seed = seed
        self._size = batch_size * models
        self._models = models
        whole, rest = divmod(roots.count, self._size)
        self._whole_epoch = whole + (1 if rest and not drop_last else 0)
        self.iterations = self._whole_epoch
        if most_iterations:
            self.iterations = min(self.iterations, most_iterations)

    @property
    def batch_size(self) -> int:
        """Roots of a global batch; the last one may have fewer."""
        return self._size

    def count(self, first: int, last: int) -> int:
        """How many roots an epoch's iterations have from ``first`` to, and without, ``last``."""
        start, stop = (min(each * self._size, self._roots.count) for each in (first, last))
        return stop - start

    def batch(self, epoch: int, iteration: int) -> GlobalBatch:
        """The global batch of one iteration; a short last one is dealt evenly to the models."""
        start = iteration * self._size
        roots = self._in_order(epoch, start, min(start + self._size, self._roots.count))
        bounds = np.arange(self._models + 1) * roots.size // self._models
        homes = self._roots.home_ranks(roots)
        return GlobalBatch(epoch, iteration, roots, bounds, homes)

    def _in_order(self, epoch: int, first: int, stop: int) -> NDArray[np.int64]:
        """[m] int64: part of an epoch's roots, in the order in which it visits them."""
        places = permuted(self._seed, epoch, self._roots.count, np.arange(first, stop))
        return self._roots.at(places)


class LocalRootSchedule(RootSchedule):
    """Global batches whose mini-batch d holds roots of home rank d only (the ``locality`` engine).

    An epoch has as many iterations as one of :class:`RootSchedule`, and every rank deals its own
    roots evenly to them: a rank with more roots has larger mini-batches.
    """

    _by_rank: tuple[int, list[NDArray[np.int64]]] | None = None

    def count(self, first: int, last: int) -> int:
        """See :class:`RootSchedule`; but for how ranks round their shares."""
        start, stop = (self._roots.count * each // self._whole_epoch for each in (first, last))
        return stop - start

    def batch(self, epoch: int, iteration: int) -> GlobalBatch:
        """The global batch of one iteration."""
        parts = []
        for own in self._roots_by_rank(epoch):
            first, stop = (own.size * (iteration + i) // self._whole_epoch for i in (0, 1))
            parts.append(own[first:stop])
        sizes = [part.size for part in parts]
        return GlobalBatch(
            epoch,
            iteration,
            np.concatenate(parts),
            np.concatenate(([0], np.cumsum(sizes))),
            np.repeat(np.arange(self._models), sizes),
        )

    def _roots_by_rank(self, epoch: int) -> list[NDArray[np.int64]]:
        if self._by_rank is None or self._by_rank[0] != epoch:
            roots = self._in_order(epoch, 0, self._roots.count)
            homes = self._roots.home_ranks(roots)
            self._by_rank = (epoch, [roots[homes == rank] for rank in range(self._models)])
        return self._by_rank[1]
