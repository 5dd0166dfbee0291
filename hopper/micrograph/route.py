"""The roots of each iteration, the models that own them and their home ranks.

Every rank derives all of this from the configuration alone, without communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.counter import ROOTS, absorb_each, key_of, variate
from cache_server.kernel import kernel
from hopper.graph.topology import Ids
from hopper.partition.placement import Placement

_ROUNDS: Final = 8
_LEAST_BITS: Final = 8
"""of the Feistel network that permutes roots; with fewer a round has too few different functions"""


@dataclass(frozen=True)
class GlobalBatch:
    """The N mini-batches of one iteration together."""

    epoch: int
    iteration: int
    roots: Ids
    """[n] int64, mini-batch after mini-batch: global ids of the target type, or indices of links
    among the training links"""
    bounds: Ids
    """[N + 1] int64, mini-batch d is ``roots[bounds[d]:bounds[d + 1]]``"""
    home_ranks: Ids
    """[n] int64, the home rank of each root"""

    @property
    def size(self) -> int:
        """The number of roots, by which the loss is divided."""
        return int(self.roots.size)

    @property
    def where(self) -> str:
        """The name of the iteration in errors."""
        return f"epoch {self.epoch}, iteration {self.iteration}"

    def of_model(self, model: int) -> Ids:
        """Return mini-batch ``model``: the roots that the model owns."""
        return self.roots[self.bounds[model] : self.bounds[model + 1]]

    def of_home(self, rank: int) -> Ids:
        """Return the roots of all models whose home rank is ``rank``, in batch order."""
        return self.roots[self.home_ranks == rank]

    def group(self, model: int, rank: int) -> Ids:
        """Return group (model, rank): the model's roots whose home rank is ``rank``, maybe none."""
        part = slice(self.bounds[model], self.bounds[model + 1])
        return self.roots[part][self.home_ranks[part] == rank]


class TrainingRoots(Protocol):
    """All roots to train, in an order that does not depend on how the graph is divided."""

    @property
    def count(self) -> int:
        """The number of roots."""

    def at(self, places: Ids) -> Ids:
        """Return [m] int64: the roots at [m] int64 places of the order, in [0, count), in
        :class:`GlobalBatch`'s form."""

    def home_ranks(self, roots: Ids) -> Ids:
        """Return [m] int64: the home rank of each root."""


@dataclass(frozen=True)
class TrainingNodes:
    """Training roots that are nodes."""

    placement: Placement
    """tells the rank that owns a node"""
    node_type: str
    """the node type of the roots"""
    ids: Ids
    """[n] int64 original ids of the roots, ascending"""
    global_ids: Ids
    """[count] int64, global id of every original id of the type"""

    @property
    def count(self) -> int:
        """The number of roots."""
        return int(self.ids.size)

    def at(self, places: Ids) -> Ids:
        """Return [m] int64 global ids of the roots at some places of ``ids``."""
        return self.global_ids[self.ids[places]]

    def home_ranks(self, roots: Ids) -> Ids:
        """Return [m] int64: the home rank of each global id."""
        return self.placement.rank_of(self.node_type, roots)


class RootSchedule:
    """The global batches of every epoch.

    Parameters
    ----------
    roots: all roots to train.
    seed: first word of the permutation's key.
    batch_size: roots of a model in an iteration.
    models: number of models N.
    drop_last: whether to leave out an incomplete last global batch.
    shuffle: whether each epoch visits the roots in another order, or all in that of ``roots``.
    most_iterations: most iterations in an epoch; 0 = no limit.
    """

    def __init__(
        self,
        roots: TrainingRoots,
        *,
        seed: int,
        batch_size: int,
        models: int,
        drop_last: bool = False,
        shuffle: bool = True,
        most_iterations: int = 0,
    ) -> None:
        self._roots, self._shuffle = roots, shuffle
        self._seed = seed
        self.batch_size = batch_size * models
        """the number of roots in a global batch; the last one may have fewer"""
        self._models = models
        complete, remainder = divmod(roots.count, self.batch_size)
        self._whole_epoch = complete + (1 if remainder and not drop_last else 0)
        self.iterations = self._whole_epoch
        if most_iterations:
            self.iterations = min(self.iterations, most_iterations)

    def count(self, first: int, last: int) -> int:
        """Return the number of roots in an epoch's iterations [first, last)."""
        start, stop = min(first * self.batch_size, self._roots.count), last * self.batch_size
        return min(stop, self._roots.count) - start

    def batch(self, epoch: int, iteration: int) -> GlobalBatch:
        """Return the global batch of an iteration; a short last one is split evenly over models."""
        start = iteration * self.batch_size
        roots = self._in_order(epoch, start, min(start + self.batch_size, self._roots.count))
        bounds = np.arange(self._models + 1) * roots.size // self._models
        homes = self._roots.home_ranks(roots)
        return GlobalBatch(epoch, iteration, roots, bounds, homes)

    def _in_order(self, epoch: int, first: int, stop: int) -> Ids:
        """Return [m] int64: an epoch's roots [first, stop) in the order in which it visits them."""
        places = np.arange(first, stop)
        if self._shuffle:
            places = permute(self._seed, epoch, self._roots.count, places)
        return self._roots.at(places)


class LocalRootSchedule(RootSchedule):
    """Global batches whose mini-batch d has roots of home rank d only (the ``locality`` engine).

    An epoch has as many iterations as one of :class:`RootSchedule`. Every rank spreads its own
    roots evenly over them, so a rank with more roots has larger mini-batches.
    """

    _by_rank: tuple[int, list[Ids]] | None = None

    def count(self, first: int, last: int) -> int:
        """Return about the number of roots in iterations [first, last); ranks round their parts."""
        count, iterations = self._roots.count, self._whole_epoch
        return count * last // iterations - count * first // iterations

    def batch(self, epoch: int, iteration: int) -> GlobalBatch:
        """Return the global batch of one iteration."""
        parts = []
        for roots in self._roots_by_rank(epoch):
            first = roots.size * iteration // self._whole_epoch
            stop = roots.size * (iteration + 1) // self._whole_epoch
            parts.append(roots[first:stop])
        sizes = [part.size for part in parts]
        return GlobalBatch(
            epoch,
            iteration,
            np.concatenate(parts),
            np.concatenate(([0], np.cumsum(sizes))),
            np.repeat(np.arange(self._models), sizes),
        )

    def _roots_by_rank(self, epoch: int) -> list[Ids]:
        if self._by_rank is None or self._by_rank[0] != epoch:
            roots = self._in_order(epoch, 0, self._roots.count)
            homes = self._roots.home_ranks(roots)
            self._by_rank = (epoch, [roots[homes == rank] for rank in range(self._models)])
        return self._by_rank[1]


@kernel
def _permute(keys: NDArray[np.uint64], count: np.uint64, bits: np.uint64, places: Ids) -> Ids:
    """Return [n] int64: the image of each place under the bijection of [0, count), by a network of
    [rounds] keys with the domain [0, 2**bits)."""
    low = bits - bits // np.uint64(2)
    high_shift, low_shift = np.uint64(64) - (bits - low), np.uint64(64) - low
    mask = (np.uint64(1) << low) - np.uint64(1)
    out = np.empty(places.size, np.int64)
    for i in range(places.size):
        x = np.uint64(places[i])
        while True:
            left, right = x >> low, x & mask
            for pair in range(keys.size // 2):
                left ^= variate(keys[2 * pair], right) >> high_shift
                right ^= variate(keys[2 * pair + 1], left) >> low_shift
            x = left << low | right
            if x < count:
                break
        out[i] = x
    return out


def permute(seed: int, epoch: int, count: int, places: Ids) -> Ids:
    """Return [n] int64: the numbers of the roots at some places of the order of an epoch.

    ``count`` roots are numbered by original id. The order is a keyed bijection: a Feistel network
    with cycle walking (Black and Rogaway, CT-RSA 2002). It needs no array of all roots.
    """
    keys = absorb_each(np.uint64(key_of(ROOTS, seed, epoch)), np.arange(_ROUNDS))
    bits = max(_LEAST_BITS, (count - 1).bit_length())
    return _permute(keys, np.uint64(count), np.uint64(bits), np.asarray(places, np.int64))
