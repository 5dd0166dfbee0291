"""Optimisers of learnable rows: an update of the rows that an iteration read, and of no others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

import torch
from torch import Tensor


class SparseOptimizer(ABC):
    """Updates the rows of one table that were read, and leaves all else as it is."""

    parts: ClassVar[int] = 0
    """what it keeps of a row: so many more of the row's width"""

    def __init__(self, learning_rate: float) -> None:
        self._rate = learning_rate

    @abstractmethod
    def step(self, records: Tensor, gradient: Tensor, factor: float = 1.0) -> None:
        """Update, in place, [n, 1 + parts, dim] records, a row and what is kept of it each, by the
        gradients [n, dim] of the rows; n may be 0. What is kept begins as zero.

        Parameters
        ----------
        factor: what multiplies the learning rate at this update.
        """

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

    def step(self, records: Tensor, gradient: Tensor, factor: float = 1.0) -> None:
        """See :class:`SparseOptimizer`."""
        self._steps += 1
        rows, mean, square = records.unbind(1)
        mean += (gradient - mean) * (1 - 0.9)
        square += (gradient * gradient - square) * (1 - 0.999)
        steps = int(self._steps)
        size = self._rate * factor * (1 - 0.999**steps) ** 0.5 / (1 - 0.9**steps)
        rows -= size * mean / (square.sqrt() + 1e-8)


class SparseAdagrad(SparseOptimizer):
    """``torch.optim.Adagrad`` on sparse gradients."""

    parts: ClassVar[int] = 1

    def step(self, records: Tensor, gradient: Tensor, factor: float = 1.0) -> None:
        """See :class:`SparseOptimizer`."""
        rows, total = records.unbind(1)
        total += gradient * gradient
        rows -= self._rate * factor * gradient / (total.sqrt() + 1e-10)


class SparseSGD(SparseOptimizer):
    """``torch.optim.SGD`` on sparse gradients."""

    def step(self, records: Tensor, gradient: Tensor, factor: float = 1.0) -> None:
        """See :class:`SparseOptimizer`."""
        records[:, 0] -= self._rate * factor * gradient


OPTIMIZERS: Final[dict[str, type[SparseOptimizer]]] = {
    "adam": SparseAdam,
    "adagrad": SparseAdagrad,
    "sgd": SparseSGD,
}
