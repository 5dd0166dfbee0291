"""Optimisers over a packed model: one update of one flat buffer.

They compute what ``torch.optim.Adam`` and ``torch.optim.SGD`` compute, with two differences that
matter here: no loop over tensors, and no import of torch's compiler, which the constructors of
``torch.optim`` pull in and which doubles the time that a rank takes to start.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from hopper.migrate.packed_model import PackedModel


class Optimizer(ABC):
    """Updates a packed model's parameters from its gradients.

    Parameters
    ----------
    learning_rate: step size.
    weight_decay: times the parameters, is added to the gradient (L2 penalty).
    """

    def __init__(
        self, packed: PackedModel, *, learning_rate: float, weight_decay: float = 0.0
    ) -> None:
        self._packed = packed
        self._learning_rate = learning_rate
        self._weight_decay = weight_decay

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters in place; gradients stay as they are."""
        parameters, gradient = self._packed.parameters, self._packed.gradients
        if self._weight_decay:
            gradient = gradient.add(parameters, alpha=self._weight_decay)
        self._update(parameters, gradient)

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """What the next update depends on besides parameters and gradient, by name.

        The tensors are the optimiser's own: filling them in place restores it.
        """

    @abstractmethod
    def _update(self, parameters: Tensor, gradient: Tensor) -> None: ...


class Sgd(Optimizer):
    """Gradient descent without momentum."""

    def state(self) -> dict[str, Tensor]:
        """Nothing."""
        return {}

    def _update(self, parameters: Tensor, gradient: Tensor) -> None:
        parameters.add_(gradient, alpha=-self._learning_rate)


class Adam(Optimizer):
    """Adam (Kingma and Ba, ICLR 2015, algorithm 1), with torch's defaults for betas and epsilon."""

    BETAS = (0.9, 0.999)
    EPSILON = 1e-8

    def __init__(
        self, packed: PackedModel, *, learning_rate: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(packed, learning_rate=learning_rate, weight_decay=weight_decay)
        self._mean = torch.zeros_like(packed.parameters)
        self._square = torch.zeros_like(packed.parameters)
        self._steps = torch.zeros(1, dtype=torch.int64)

    def state(self) -> dict[str, Tensor]:
        """Both moments (flat, as the parameters) and the number of updates so far."""
        return {"mean": self._mean, "square": self._square, "steps": self._steps}

    def _update(self, parameters: Tensor, gradient: Tensor) -> None:
        first, second = self.BETAS
        self._steps += 1
        steps = int(self._steps)
        self._mean.lerp_(gradient, 1 - first)
        self._square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        scale = math.sqrt(1 - second**steps)
        denominator = (self._square.sqrt() / scale).add_(self.EPSILON)
        step_size = self._learning_rate / (1 - first**steps)
        parameters.addcdiv_(self._mean, denominator, value=-step_size)
