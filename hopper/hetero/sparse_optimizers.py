"""Optimisers of learnable rows: an update of the rows that an iteration read, and of no others.

On the CPU a numba kernel reads and writes each record once. It computes what torch's operations do,
which update records on other devices, but for square roots: torch's are not all rounded correctly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.kernel import kernel
from hopper.kernel_threads import threads_for

_BETAS: Final = (0.9, 0.999)

Ids = NDArray[np.int64]
Array = NDArray[Any]


@dataclass(frozen=True)
class Factors:
    """What multiplies a part of an update.

    Attributes
    ----------
    rate: the learning rate. gradient: the gradients, as those of all parameters are. l2: the row,
        and is added to its gradient.
    """

    rate: float = 1.0
    gradient: float = 1.0
    l2: float = 0.0


_UNCHANGED: Final = Factors()


class SparseOptimizer(ABC):
    """Updates the rows of one table that were read, and leaves all else as it is."""

    parts: ClassVar[int] = 0
    """what it keeps of a row: so many more of the row's width"""

    def __init__(self, learning_rate: float) -> None:
        self._rate = learning_rate

    def step(
        self,
        records: Tensor,
        gradient: Tensor,
        factors: Factors = _UNCHANGED,
        places: Ids | None = None,
    ) -> None:
        """Update records in place, a row and what is kept of it each; what is kept begins as zero.

        Parameters
        ----------
        records: [m, 1 + parts, dim], contiguous.
        gradient: [n, dim], of their rows; n may be 0.
        places: [n] int64 distinct: of which records, on the CPU; None = of all, in order.
        """
        if records.device.type == "cpu":
            if places is None:
                places = np.arange(len(records))
            with threads_for(places.size):
                self._update(records.numpy(), gradient.contiguous().numpy(), factors, places)
            return
        assert places is None
        if factors.gradient != 1.0:
            gradient = gradient * factors.gradient
        if factors.l2:
            gradient = gradient + factors.l2 * records[:, 0]
        self._update_by_torch(records, gradient, factors.rate)

    @abstractmethod
    def _update(self, records: Array, gradient: Array, factors: Factors, places: Ids) -> None:
        """Update records on the CPU."""

    @abstractmethod
    def _update_by_torch(self, records: Tensor, gradient: Tensor, factor: float) -> None:
        """Update all records; ``factor`` is what multiplies the learning rate."""

    def state(self) -> dict[str, Tensor]:
        """What the next update depends on besides the records; its own tensors."""
        return {}


class SparseAdam(SparseOptimizer):
    """``torch.optim.SparseAdam``: moments of rows that were not read stand still, the number of
    steps is that of all."""

    parts: ClassVar[int] = 2

    def __init__(self, learning_rate: float) -> None:
        super().__init__(learning_rate)
        self._steps = torch.zeros(1, dtype=torch.int64)

    def state(self) -> dict[str, Tensor]:
        """See :class:`SparseOptimizer`."""
        return {"steps": self._steps}

    def _begin(self, factor: float) -> float:
        """Count a step; its size."""
        self._steps += 1
        steps, (first, second) = int(self._steps), _BETAS
        return self._rate * factor * (1 - second**steps) ** 0.5 / (1 - first**steps)

    def _update(self, records: Array, gradient: Array, factors: Factors, places: Ids) -> None:
        size, number = self._begin(factors.rate), records.dtype.type
        numbers = (factors.gradient, factors.l2, size, 1 - _BETAS[0], 1 - _BETAS[1], 1e-8)
        _adam(records, gradient, places, *(number(each) for each in numbers))

    def _update_by_torch(self, records: Tensor, gradient: Tensor, factor: float) -> None:
        size = self._begin(factor)
        rows, mean, square = records.unbind(1)
        mean += (gradient - mean) * (1 - _BETAS[0])
        square += (gradient * gradient - square) * (1 - _BETAS[1])
        rows -= size * mean / (square.sqrt() + 1e-8)


class SparseAdagrad(SparseOptimizer):
    """``torch.optim.Adagrad`` on sparse gradients."""

    parts: ClassVar[int] = 1

    def _update(self, records: Array, gradient: Array, factors: Factors, places: Ids) -> None:
        size, number = self._rate * factors.rate, records.dtype.type
        numbers = (factors.gradient, factors.l2, size, 1e-10)
        _adagrad(records, gradient, places, *(number(each) for each in numbers))

    def _update_by_torch(self, records: Tensor, gradient: Tensor, factor: float) -> None:
        rows, total = records.unbind(1)
        total += gradient * gradient
        rows -= self._rate * factor * gradient / (total.sqrt() + 1e-10)


class SparseSGD(SparseOptimizer):
    """``torch.optim.SGD`` on sparse gradients."""

    def _update(self, records: Array, gradient: Array, factors: Factors, places: Ids) -> None:
        size, number = self._rate * factors.rate, records.dtype.type
        numbers = (factors.gradient, factors.l2, size)
        _sgd(records, gradient, places, *(number(each) for each in numbers))

    def _update_by_torch(self, records: Tensor, gradient: Tensor, factor: float) -> None:
        records[:, 0] -= self._rate * factor * gradient


OPTIMIZERS: Final[dict[str, type[SparseOptimizer]]] = {
    "adam": SparseAdam,
    "adagrad": SparseAdagrad,
    "sgd": SparseSGD,
}


# Scalars are of the records' dtype, so that nothing is computed in a wider one.


@kernel(parallel=True, error_model="numpy")
def _adam(
    records: Array,
    gradient: Array,
    places: Ids,
    scale: Any,
    l2: Any,
    size: Any,
    first: Any,
    second: Any,
    smallest: Any,
) -> None:
    for i in numba.prange(places.size):
        place = places[i]
        for j in range(gradient.shape[1]):
            row = records[place, 0, j]
            given = gradient[i, j] * scale + l2 * row
            mean, square = records[place, 1, j], records[place, 2, j]
            mean += (given - mean) * first
            square += (given * given - square) * second
            records[place, 0, j] = row - size * mean / (np.sqrt(square) + smallest)
            records[place, 1, j] = mean
            records[place, 2, j] = square


@kernel(parallel=True, error_model="numpy")
def _adagrad(
    records: Array, gradient: Array, places: Ids, scale: Any, l2: Any, size: Any, smallest: Any
) -> None:
    for i in numba.prange(places.size):
        place = places[i]
        for j in range(gradient.shape[1]):
            row = records[place, 0, j]
            given = gradient[i, j] * scale + l2 * row
            total = records[place, 1, j] + given * given
            records[place, 0, j] = row - size * given / (np.sqrt(total) + smallest)
            records[place, 1, j] = total


@kernel(parallel=True, error_model="numpy")
def _sgd(records: Array, gradient: Array, places: Ids, scale: Any, l2: Any, size: Any) -> None:
    for i in numba.prange(places.size):
        place = places[i]
        for j in range(gradient.shape[1]):
            row = records[place, 0, j]
            records[place, 0, j] = row - size * (gradient[i, j] * scale + l2 * row)
