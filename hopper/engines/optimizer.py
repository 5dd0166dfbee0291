"""Optimisers of a flat model, which make one update of one flat buffer.

The built-in rules call ``torch.optim.adam.adam`` and ``torch.optim.sgd.sgd``. The classes of
``torch.optim`` are not used, because constructing one imports torch's
compiler, which doubles the time that a rank takes to start.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

import torch
from pydantic import Field
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from hopper.engines.learning_rate import CONSTANT, LRScheduler
from hopper.errors import ConfigError
from hopper.migrate.flat_model import FlatModel

Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class UpdateRule(ABC):
    """Updates parameters from their gradient: the part of an optimiser that differs.

    A rule works on all dense parameters at once, as one flat tensor. It updates each number by
    itself: the result depends only on that number, its gradients and their count. Under ``raf`` and
    ``p3`` this lets a server update only the numbers that it computes with.

    Parameters
    ----------
    parameters: [n], flat. The rule keeps its state in their dtype and on their device.
    weight_decay: ``train.weight_decay``, which the rule interprets.
    """

    def __init__(self, parameters: Tensor, *, weight_decay: float = 0.0) -> None:
        self._weight_decay = weight_decay

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return the tensors, by name, on which the next update depends.

        Parameters and gradient are not among them. Filling the tensors in place restores the rule.
        A tensor with a number for each parameter has the parameters' shape.
        """

    @abstractmethod
    def update(self, parameters: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Update [n] parameters in place from their [n] gradient; called without autograd.

        Parameters
        ----------
        learning_rate: the learning rate of this update, after schedules.
        """


class Sgd(UpdateRule):
    """Gradient descent without momentum, with weight decay as an L2 penalty."""

    def state(self) -> dict[str, Tensor]:
        """Return no tensors: the rule has no state."""
        return {}

    def update(self, parameters: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Subtract the learning rate times the gradient, with weight decay added to it."""
        sgd(
            [parameters],
            [gradient],
            [None],
            foreach=False,
            weight_decay=self._weight_decay,
            momentum=0.0,
            lr=learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


class Adam(UpdateRule):
    """Adam (Kingma and Ba, ICLR 2015, algorithm 1), with torch's defaults for betas and epsilon.

    Parameters
    ----------
    parameters: as in :class:`UpdateRule`.
    weight_decay: the factor of the parameters that is added to the gradient (L2 penalty).
    betas: the factors of the two moments at an update.
    epsilon: added to the root of the second moment.
    """

    penalises: ClassVar[bool] = True
    """whether weight decay is added to the gradient"""

    def __init__(
        self,
        parameters: Tensor,
        *,
        weight_decay: float = 0.0,
        betas: tuple[Decay, Decay] = (0.9, 0.999),
        epsilon: Annotated[float, Field(gt=0.0)] = 1e-8,
    ) -> None:
        super().__init__(parameters, weight_decay=weight_decay)
        self._betas = betas
        self._epsilon = epsilon
        self._mean = torch.zeros_like(parameters)
        self._square = torch.zeros_like(parameters)
        self._steps = torch.zeros((), dtype=torch.float32)

    def state(self) -> dict[str, Tensor]:
        """Return both moments, flat as the parameters, and the number of updates so far."""
        return {"mean": self._mean, "square": self._square, "steps": self._steps}

    def update(self, parameters: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Update the moments, and the parameters from them."""
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
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=learning_rate,
            weight_decay=self._weight_decay if self.penalises else 0.0,
            eps=self._epsilon,
            maximize=False,
        )


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019, algorithm 2).

    Parameters are multiplied by one less learning rate times ``weight_decay``.
    """

    penalises: ClassVar[bool] = False

    def update(self, parameters: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Shrink the parameters, then update them as Adam does."""
        parameters.mul_(1.0 - learning_rate * self._weight_decay)
        super().update(parameters, gradient, learning_rate)


RULES: Final[Mapping[str, type[UpdateRule]]] = {"adam": Adam, "adamw": AdamW, "sgd": Sgd}


class Optimizer:
    """Updates a flat model's parameters from its gradients, by a rule and a learning rate that
    follows a schedule."""

    def __init__(
        self,
        packed: FlatModel,
        rule: UpdateRule,
        *,
        learning_rate: float,
        scheduler: LRScheduler = CONSTANT,
    ) -> None:
        self._packed, self._rule = packed, rule
        self._learning_rate, self.scheduler = learning_rate, scheduler

    @torch.no_grad()
    def step(
        self, clip_norm: float = 0.0, squares: float | None = None, factor: float = 1.0
    ) -> float:
        """Update the parameters in place, and return the factor by which the gradient was scaled.

        The caller applies the factor to gradients that are not in the flat model.

        Parameters
        ----------
        clip_norm: the bound of the gradient's norm over all parameters; 0 = no bound.
        squares: the sum of squares of the whole gradient; None = all of it is in the flat model.
        factor: the factor of the learning rate at this update.
        """
        scale = 1.0
        if clip_norm > 0:
            if squares is None:
                squares = float(self._packed.gradients.square().sum())
            # torch's clip_grad_norm_ adds the same constant.
            scale = min(1.0, clip_norm / (math.sqrt(squares) + 1e-6))
            self._packed.gradients.mul_(scale)
        parameters, gradients = self._packed.parameters, self._packed.gradients
        self._rule.update(parameters, gradients, self._learning_rate * factor)
        return scale

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that :meth:`UpdateRule.state` returns."""
        return self._rule.state()


_TRIED: Final = 4


@torch.no_grad()
def check_rule(name: str, rules: tuple[UpdateRule, UpdateRule], dtype: torch.dtype) -> None:
    """Try an update rule, as two instances of [4] and of [2] parameters, on a few numbers."""
    parameters = torch.linspace(-1.0, 1.0, _TRIED, dtype=dtype)
    half = parameters[: _TRIED // 2].clone()
    for turn in range(2):
        gradient = torch.linspace(0.5, -2.0, _TRIED, dtype=dtype) * (turn + 1)
        try:
            rules[0].update(parameters, gradient.clone(), 0.01)
            rules[1].update(half, gradient[: half.numel()].clone(), 0.01)
            state = rules[0].state()
        # A plug-in may raise anything; the error must name the key that chose it.
        except Exception as error:
            raise ConfigError(
                f"train.optimizer: {name} cannot make an update ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
            raise ConfigError(
                f"train.optimizer: {name}: expected state() to return tensors by name; got "
                f"{state!r:.200}"
            )
    if not bool(parameters.isfinite().all()):
        raise ConfigError(f"train.optimizer: {name}: its update makes {parameters.tolist()}")
    if not torch.allclose(parameters[: half.numel()], half, rtol=1e-5, atol=1e-7):
        raise ConfigError(
            f"train.optimizer: {name}: expected an update of each number by itself; what one "
            "becomes depends on the others"
        )
