"""A user-defined optimiser: `train.optimizer = "lion:Lion"`. See docs/howto/plug-ins.md."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class Lion:
    """Steps of equal size, along the sign of a moving mean (Chen et al., NeurIPS 2023).

    It needs about a tenth of Adam's learning rate.

    Parameters
    ----------
    parameters: [n], all dense parameters, flat.
    weight_decay: decoupled weight decay; a step shrinks parameters by it times the learning rate.
    betas: the weight of the moving mean in a step, and in its own update.
    """

    def __init__(
        self,
        *,
        parameters: Tensor,
        weight_decay: float = 0.0,
        betas: tuple[Beta, Beta] = (0.9, 0.99),
    ) -> None:
        self._decay = weight_decay
        self._betas = betas
        self._mean = torch.zeros_like(parameters)

    def state(self) -> dict[str, Tensor]:
        """The moving mean, which checkpoints save and restore."""
        return {"mean": self._mean}

    def update(self, parameters: Tensor, gradient: Tensor, learning_rate: float) -> None:
        """Change parameters in place."""
        of_step, of_mean = self._betas
        step = torch.lerp(gradient, self._mean, of_step).sign_()
        parameters.mul_(1 - learning_rate * self._decay).sub_(step, alpha=learning_rate)
        self._mean.lerp_(gradient, 1 - of_mean)
