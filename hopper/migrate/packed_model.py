"""A model as one buffer: what migrates is one message, not a call per tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class PackedModel:
    """Lays a module's trainable parameters and their gradients out in one flat tensor.

    The module's parameters and ``.grad`` become views of the buffer, so what is received into it
    *is* the model, and backward accumulates straight into what is sent. Layout, in elements of the
    parameters' dtype: ``[parameters | gradients | loss]``; the last element carries the loss
    accumulated so far, so that loss and gradients are summed over ranks in one message.

    Raises
    ------
    ValueError: trainable parameters differ in dtype or device, or there are none.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        kinds = {(p.dtype, p.device) for p in self._parameters}
        if len(kinds) != 1:
            raise ValueError(f"one dtype and device expected of all parameters, got {kinds}")
        dtype, device = kinds.pop()
        count = sum(p.numel() for p in self._parameters)
        self.buffer = torch.zeros(2 * count + 1, dtype=dtype, device=device)
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
        """gradients and loss: what synchronisation sums"""
        self.gradients = accumulated[:count]
        self.loss = accumulated[count:]
        offset = 0
        for parameter in self._parameters:
            part = slice(offset, offset + parameter.numel())
            parameter.data = self.parameters[part].view_as(parameter)
            parameter.grad = self.gradients[part].view_as(parameter)
            offset = part.stop

    @contextmanager
    def standing_in(self, parameters: Tensor, accumulated: Tensor) -> Iterator[None]:
        """Let the module be another model for a while: with these parameters and gradients.

        Parameters
        ----------
        parameters, accumulated: [count] and [count + 1], like this model's own.
        """
        own = self.parameters, self.accumulated
        self._bind(parameters, accumulated)
        try:
            yield
        finally:
            self._bind(*own)

    def clear(self) -> None:
        """Set gradients and loss to zero."""
        self.accumulated.zero_()

    def named_gradients(self) -> dict[str, Tensor]:
        """The gradient of every trainable parameter, by name; views of the buffer."""
        return {
            name: p.grad
            for name, p in self.module.named_parameters()
            if p.requires_grad and p.grad is not None
        }
