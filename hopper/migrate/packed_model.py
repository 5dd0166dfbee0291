"""A model as one buffer: what migrates is one message, not a call per tensor."""

from __future__ import annotations

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
        self.parameters = self.buffer[:count]
        self.gradients = self.buffer[count : 2 * count]
        self.loss = self.buffer[2 * count :]
        self.accumulated = self.buffer[count:]
        """gradients and loss: what synchronisation sums"""
        offset = 0
        for parameter in self._parameters:
            part = slice(offset, offset + parameter.numel())
            flat = self.parameters[part].view_as(parameter)
            flat.copy_(parameter.detach())
            parameter.data = flat
            parameter.grad = self.gradients[part].view_as(parameter)
            offset = part.stop

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
