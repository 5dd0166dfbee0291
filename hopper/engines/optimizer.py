"""Optimisers of a flat model, which make one update of one flat buffer.

Adam is the function ``torch.optim.adam.adam``. The classes of ``torch.optim`` are not used, because
constructing one imports torch's compiler, which doubles the time that a rank takes to start.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import torch
from pydantic import Field
from torch import Tensor
from torch.optim.adam import adam

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
        if self._weight_decay:
            gradient = gradient.add(parameters, alpha=self._weight_decay)
        parameters.add_(gradient, alpha=-learning_rate)


class Adam(UpdateRule):
    """Adam (Kingma and Ba, ICLR 2015, algorithm 1), with torch's defaults for betas and epsilon.

    Weight decay is an L2 penalty. ``betas`` are the factors of the two moments at an update, and
    ``epsilon`` is added to the root of the second one.
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
        self._betas, self._epsilon = betas, epsilon
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
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019, algorithm 2)."""

    penalises: ClassVar[bool] = False

    def update(self, parameters: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Shrink the parameters, then update them as Adam does."""
        parameters.mul_(1.0 - learning_rate * self._weight_decay)
        super().update(parameters, gradient, learning_rate)


RULES: Final[Mapping[str, type[UpdateRule]]] = {"adam": Adam, "adamw": AdamW, "sgd": Sgd}


@dataclass(eq=False)
class Optimizer:
    """Updates a flat model's parameters from its gradients, by a rule and a learning rate that
    follows a schedule."""

    packed: FlatModel
    rule: UpdateRule
    learning_rate: float
    scheduler: LRScheduler = CONSTANT

    @torch.no_grad()
    def step(self, clip_norm: float = 0.0, squares: float = 0.0, factor: float = 1.0) -> float:
        """Update the parameters in place, with a factor of the learning rate.

        If ``clip_norm`` is not 0, it bounds the norm of the whole gradient, whose square is given.
        Returns the factor of the gradient, for those that are not in the flat model.
        """
        parameters, gradients, scale = self.packed.parameters, self.packed.gradients, 1.0
        if clip_norm > 0:
            # torch's clip_grad_norm_ adds the same constant.
            scale = min(1.0, clip_norm / (math.sqrt(squares) + 1e-6))
            gradients.mul_(scale)
        self.rule.update(parameters, gradients, self.learning_rate * factor)
        return scale

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that :meth:`UpdateRule.state` returns."""
        return self.rule.state()


@torch.no_grad()
def check_rule(name: str, make: Callable[[Tensor], UpdateRule], dtype: torch.dtype) -> None:
    """Try an update rule on four parameters, and on the first two of them alone."""
    parameters = torch.linspace(-1.0, 1.0, 4, dtype=dtype)
    half = parameters[:2].clone()
    rule, half_rule = make(torch.zeros_like(parameters)), make(torch.zeros_like(half))
    where = f"train.optimizer: {name}"
    for turn in (1, 2):
        gradient = torch.linspace(0.5, -2.0, 4, dtype=dtype) * turn
        try:
            rule.update(parameters, gradient.clone(), 0.01)
            half_rule.update(half, gradient[:2].clone(), 0.01)
            state = rule.state()
        # A plug-in may raise anything; the error must name the key that chose it.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{where} cannot make an update ({reason})") from error
        if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
            expected = "expected state() to return tensors by name"
            raise ConfigError(f"{where}: {expected}; got {state!r:.200}")
    if not bool(parameters.isfinite().all()):
        raise ConfigError(f"{where}: its update makes {parameters.tolist()}")
    if not torch.allclose(parameters[:2], half, rtol=1e-5, atol=1e-7):
        raise ConfigError(
            f"{where}: expected an update of each number by itself; what one becomes depends on "
            "the others"
        )
