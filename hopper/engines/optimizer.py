"""torch's optimisers over a packed model: one update of one flat buffer.

The arithmetic is that of ``torch.optim.adam.adam`` and ``torch.optim.sgd.sgd``. Their classes are
not used because constructing one imports torch's compiler, which doubles the time that a rank takes
to start.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

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
    def step(self, clip_norm: float = 0.0, squares: float | None = None) -> float:
        """Update the parameters in place.

        Parameters
        ----------
        clip_norm: bound of the gradient's norm over all parameters, above which the gradient is
            scaled down in place; 0 = none.
        squares: of the whole gradient, added up, where some of it is elsewhere; None = all of it is
            the model's.

        Returns
        -------
        What the gradient was scaled by, and the rest of it has to be.
        """
        scale = 1.0
        if clip_norm > 0:
            if squares is None:
                squares = float(self._packed.gradients.square().sum())
            norm = math.sqrt(squares)
            # As torch's clip_grad_norm_ does it.
            scale = min(1.0, clip_norm / (norm + 1e-6))
            self._packed.gradients.mul_(scale)
        self._update(self._packed.parameters, self._packed.gradients)
        return scale

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
        sgd(
            [parameters],
            [gradient],
            [None],
            foreach=False,
            weight_decay=self._weight_decay,
            momentum=0.0,
            lr=self._learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


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
        self._steps = torch.zeros((), dtype=torch.float32)

    def state(self) -> dict[str, Tensor]:
        """Both moments (flat, as the parameters) and the number of updates so far."""
        return {"mean": self._mean, "square": self._square, "steps": self._steps}

    def _update(self, parameters: Tensor, gradient: Tensor) -> None:
        adam(
            [parameters],
            [gradient],
            [self._mean],
            [self._square],
            [],
            [self._steps],
            foreach=False,
            fused=False,
            amsgrad=False,
            beta1=self.BETAS[0],
            beta2=self.BETAS[1],
            lr=self._learning_rate,
            weight_decay=self._weight_decay,
            eps=self.EPSILON,
            maximize=False,
        )
