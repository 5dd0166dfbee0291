"""Optimisers of learnable rows, which update only the rows that an iteration read.

On the CPU a numba kernel reads and writes each record once. On other devices torch's operations
update records. Both compute the same, except for square roots, which torch does not always round
correctly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cache_server.kernel import kernel
from hopper.device.kernel_threads import threads_for
from hopper.graph.topology import Ids

_BETAS: Final = (0.9, 0.999)

Array = NDArray[Any]


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
            total_gradient = gradient[i, j] * scale + l2 * row
            mean, square = records[place, 1, j], records[place, 2, j]
            mean += (total_gradient - mean) * first
            square += (total_gradient * total_gradient - square) * second
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
            total_gradient = gradient[i, j] * scale + l2 * row
            total = records[place, 1, j] + total_gradient * total_gradient
            records[place, 0, j] = row - size * total_gradient / (np.sqrt(total) + smallest)
            records[place, 1, j] = total


@kernel(parallel=True, error_model="numpy")
def _sgd(records: Array, gradient: Array, places: Ids, scale: Any, l2: Any, size: Any) -> None:
    for i in numba.prange(places.size):
        place = places[i]
        for j in range(gradient.shape[1]):
            row = records[place, 0, j]
            records[place, 0, j] = row - size * (gradient[i, j] * scale + l2 * row)


class SparseOptimizer(ABC):
    """Updates the rows of one table that were read, and leaves all other rows as they are."""

    parts: ClassVar[int] = 0
    """the size of a row's state, in multiples of the row's width"""
    _kernel: ClassVar[Callable[..., None]]
    """the kernel that updates records on the CPU"""
    _constants: ClassVar[tuple[float, ...]] = ()
    """the last arguments of the kernel"""

    def __init__(self, learning_rate: float, l2: float = 0.0) -> None:
        self._rate, self._l2 = learning_rate, l2

    def step(
        self,
        records: Tensor,
        gradient: Tensor,
        places: Ids | None = None,
        *,
        scale: float = 1.0,
        factor: float = 1.0,
    ) -> None:
        """Update records [m, 1 + parts, dim], contiguous, in place, by the gradients [n, dim] of
        rows. A record is a row and its state, which begins as zero. ``places``, [n], distinct, are
        the indices of the records to update, on the CPU only; None = all records, in order.

        Gradients are multiplied by ``scale``, before ``l2`` times the row is added, and the
        learning rate by ``factor``.
        """
        size = self._begin(self._rate * factor)
        if records.device.type == "cpu":
            if places is None:
                places = np.arange(len(records))
            # Scalars have the records' dtype, so that no kernel computes in a wider one.
            number = records.numpy().dtype.type
            numbers = (scale, self._l2, size, *self._constants)
            arrays = records.numpy(), gradient.contiguous().numpy(), places
            with threads_for(places.size):
                self._kernel(*arrays, *(number(value) for value in numbers))
            return
        assert places is None
        if scale != 1.0:
            gradient = gradient * scale
        if self._l2:
            gradient = gradient + self._l2 * records[:, 0]
        self._update_by_torch(records, gradient, size)

    def _begin(self, rate: float) -> float:
        """Return the size of a step, given the learning rate."""
        return rate

    @abstractmethod
    def _update_by_torch(self, records: Tensor, gradient: Tensor, size: float) -> None:
        """Update all records by a step of a size."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors, by name, on which the next update depends besides records, and which
        may be filled in place."""
        return {}


class SparseAdam(SparseOptimizer):
    """``torch.optim.SparseAdam``: the moments of rows change only when the rows are read. All
    updates of the table count as steps."""

    parts: ClassVar[int] = 2
    _kernel = staticmethod(_adam)
    _constants = (1 - _BETAS[0], 1 - _BETAS[1], 1e-8)

    def __init__(self, learning_rate: float, l2: float = 0.0) -> None:
        super().__init__(learning_rate, l2)
        self._steps = torch.zeros(1, dtype=torch.int64)

    def state(self) -> dict[str, Tensor]:
        """Return the number of updates so far."""
        return {"steps": self._steps}

    def _begin(self, rate: float) -> float:
        self._steps += 1
        steps, (first, second) = int(self._steps), _BETAS
        return rate * (1 - second**steps) ** 0.5 / (1 - first**steps)

    def _update_by_torch(self, records: Tensor, gradient: Tensor, size: float) -> None:
        rows, mean, square = records.unbind(1)
        mean += (gradient - mean) * (1 - _BETAS[0])
        square += (gradient * gradient - square) * (1 - _BETAS[1])
        rows -= size * mean / (square.sqrt() + 1e-8)


class SparseAdagrad(SparseOptimizer):
    """``torch.optim.Adagrad`` on sparse gradients."""

    parts: ClassVar[int] = 1
    _kernel = staticmethod(_adagrad)
    _constants = (1e-10,)

    def _update_by_torch(self, records: Tensor, gradient: Tensor, size: float) -> None:
        rows, total = records.unbind(1)
        total += gradient * gradient
        rows -= size * gradient / (total.sqrt() + 1e-10)


class SparseSGD(SparseOptimizer):
    """``torch.optim.SGD`` on sparse gradients."""

    _kernel = staticmethod(_sgd)

    def _update_by_torch(self, records: Tensor, gradient: Tensor, size: float) -> None:
        records[:, 0] -= size * gradient


OPTIMIZERS: Final[dict[str, type[SparseOptimizer]]] = {
    "adam": SparseAdam,
    "adagrad": SparseAdagrad,
    "sgd": SparseSGD,
}
