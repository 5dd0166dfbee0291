"""A model in one buffer, so that it migrates in one message instead of one per tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor, nn

from hopper.ops import is_finite

_FIRST_SCALE: Final = 1024.0
_SCALE_GROWS_AFTER: Final = 2000


class LossScale:
    """The factor of the loss under float16, by the rule of ``torch.amp.GradScaler``.

    Without it small gradients would become 0. It begins at 1,024, where few first gradients
    overflow. After a gradient that is not finite it is halved, but not below 1. After 2,000 finite
    ones in a row it is doubled. Powers of two round nothing. The class of torch itself looks at one
    process's gradients and skips the step of an optimiser of torch's, so only its rule is used.

    Parameters
    ----------
    is_on: whether products are in float16; otherwise the factor is always 1.
    """

    def __init__(self, is_on: bool = False) -> None:
        self._is_on = is_on
        # The factor, and how many finite gradients came since it last changed.
        self._state = torch.tensor([_FIRST_SCALE if is_on else 1.0, 0.0], dtype=torch.float64)

    @property
    def factor(self) -> float:
        """The factor of the next backward pass."""
        return float(self._state[0])

    def update(self, is_finite: bool) -> None:
        """Choose the next factor, after a gradient of which it is known whether it is finite."""
        if not self._is_on:
            return
        factor, count = self._state.tolist()
        if not is_finite:
            factor, count = max(1.0, factor / 2), 0.0
        elif count + 1 == _SCALE_GROWS_AFTER:
            factor, count = factor * 2, 0.0
        else:
            count += 1
        self._state.copy_(torch.tensor([factor, count], dtype=torch.float64))

    def state(self) -> dict[str, Tensor]:
        """Return the tensor on which the next factors depend, by name; nothing if it is off."""
        return {"loss_scale": self._state} if self._is_on else {}


class FlatModel:
    """Stores a module's trainable parameters and their gradients in one flat tensor.

    The module's parameters and their ``.grad`` become views of the buffer. A model that is received
    into the buffer is therefore in place, and backward accumulates into what is sent. The layout is
    ``[parameters | gradients | loss]``, in the parameters' dtype. The last element is the loss
    accumulated so far, so that loss and gradients are summed over ranks in one message.

    Parameters
    ----------
    scale: the factor of gradients until :meth:`unscale`; None = 1.

    Attributes
    ----------
    own_loss: [1], the loss that this rank has added since :meth:`clear`, wherever the model was.

    Raises
    ------
    ValueError: trainable parameters differ in dtype or device, or there are none.
    """

    def __init__(self, module: nn.Module, scale: LossScale | None = None) -> None:
        self.module = module
        self.scale = scale or LossScale()
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        kinds = {(p.dtype, p.device) for p in self._parameters}
        if len(kinds) != 1:
            raise ValueError(f"one dtype and device expected of all parameters, got {kinds}")
        dtype, device = kinds.pop()
        count = sum(p.numel() for p in self._parameters)
        self.buffer = torch.zeros(2 * count + 1, dtype=dtype, device=device)
        self.own_loss = torch.zeros(1, dtype=dtype, device=device)
        offset = 0
        for parameter in self._parameters:
            part = self.buffer[offset : offset + parameter.numel()]
            part.view_as(parameter).copy_(parameter.detach())
            offset += parameter.numel()
        self._bind(self.buffer[:count], self.buffer[count:])

    def _bind(self, parameters: Tensor, accumulated: Tensor) -> None:
        count = parameters.numel()
        self.parameters = parameters
        self.accumulated = accumulated
        """gradients and loss, which synchronisation sums"""
        self.gradients = accumulated[:count]
        self.loss = accumulated[count:]
        offset = 0
        for parameter in self._parameters:
            part = slice(offset, offset + parameter.numel())
            parameter.data = self.parameters[part].view_as(parameter)
            parameter.grad = self.gradients[part].view_as(parameter)
            offset = part.stop

    @contextmanager
    def swap_in(self, parameters: Tensor, accumulated: Tensor) -> Iterator[None]:
        """Let the module be another model during the block, with its parameters and gradients.

        Parameters
        ----------
        parameters, accumulated: [count] and [count + 1], laid out like this model's own.
        """
        before = self.parameters, self.accumulated
        self._bind(parameters, accumulated)
        try:
            yield
        finally:
            self._bind(*before)

    def clear(self) -> None:
        """Set gradients and loss to zero."""
        self.accumulated.zero_()
        self.own_loss.zero_()

    def add_loss(self, loss: Tensor) -> None:
        """Add the value of a loss to the loss so far."""
        self.loss += loss.detach()
        self.own_loss += loss.detach()

    def is_finite(self) -> bool:
        """Return whether loss and gradients are finite."""
        return is_finite(self.accumulated)

    def unscale(self) -> None:
        """Divide gradients by :attr:`scale`'s factor."""
        if self.scale.factor != 1.0:
            self.gradients.div_(self.scale.factor)

    def named_gradients(self) -> dict[str, Tensor]:
        """Return views of every trainable parameter's gradient, by name."""
        return {
            name: p.grad
            for name, p in self.module.named_parameters()
            if p.requires_grad and p.grad is not None
        }
