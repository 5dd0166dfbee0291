"""A model in one buffer, so that it migrates in one message instead of one per tensor."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from hopper.ops import is_finite

_FIRST_SCALE: Final = 1024.0
_SCALE_GROWS_AFTER: Final = 2000


class LossScale:
    """The factor of the loss under float16, by the rule of ``torch.amp.GradScaler``.

    It begins at 1,024. After a gradient that is not finite it is halved, but not below 1, and after
    2,000 finite ones in a row it is doubled. The class of torch itself looks at one process's
    gradients alone. Unless products are in float16 (``is_on``), the factor is always 1.
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

    ``scale`` is the factor of gradients until :meth:`unscale`, and ``own_loss`` the loss that this
    rank has added since :meth:`clear`, wherever the model was.
    """

    def __init__(self, module: nn.Module, scale: LossScale | None = None) -> None:
        self.module, self.scale = module, scale or LossScale()
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        kinds = {(p.dtype, p.device) for p in self._parameters}
        if len(kinds) != 1:
            raise ValueError(f"one dtype and device expected of all parameters, got {kinds}")
        parameters = torch.cat([p.detach().flatten() for p in self._parameters])
        count = parameters.numel()
        self.own_loss = parameters.new_zeros(1)
        self.buffer = torch.cat((parameters, parameters.new_zeros(count + 1)))
        self.bind(self.buffer[:count], self.buffer[count:])

    def bind(self, parameters: Tensor, accumulated: Tensor) -> None:
        """Let the module be a model with these parameters [count], and these gradients and loss
        [count + 1], which synchronisation sums."""
        self.parameters, self.accumulated = parameters, accumulated
        count, offset = parameters.numel(), 0
        self.gradients, self.loss = accumulated[:count], accumulated[count:]
        for parameter in self._parameters:
            part = slice(offset, offset + parameter.numel())
            parameter.data = self.parameters[part].view_as(parameter)
            parameter.grad = self.gradients[part].view_as(parameter)
            offset = part.stop

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
