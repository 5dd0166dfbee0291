"""The models that are on a rank during an iteration (HopGNN, section 5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from hopper.migrate.packed_model import PackedModel


class Dock:
    """The buffers of the models on a rank, and the module that computes with one of them at a time.

    With synchronous replicas, every model has the parameters of this rank's replica at the start of
    an iteration. So a model can start on any rank, and it is enough to move its gradients. An
    independent model has a dock of its own on every rank, and starts and ends at home.

    Parameters
    ----------
    packed: this rank's replica.
    moves_parameters: whether a model's buffer holds its parameters too.
    """

    def __init__(self, packed: PackedModel, moves_parameters: bool) -> None:
        self._packed = packed
        self._shape = packed.buffer if moves_parameters else packed.accumulated
        self._moves_parameters = moves_parameters
        self._present: dict[int, Tensor] = {}
        self._spare: list[Tensor] = []

    def start(self, models: Sequence[int]) -> None:
        """Let models start here, with the replica's parameters and zero gradients."""
        for model in models:
            buffer = self.empty_buffer()
            if self._moves_parameters:
                count = self._packed.parameters.numel()
                buffer[:count].copy_(self._packed.parameters)
                buffer[count:].zero_()
            else:
                buffer.zero_()
            self._present[model] = buffer

    def empty_buffer(self) -> Tensor:
        """Return an uninitialised buffer to receive a model into."""
        return self._spare.pop() if self._spare else torch.empty_like(self._shape)

    def enter(self, model: int, buffer: Tensor) -> None:
        """Take in a model that has arrived in ``buffer``."""
        self._present[model] = buffer

    def leave(self, model: int) -> Tensor:
        """Remove a model and return its buffer; pass it to :meth:`reuse` when it has been sent."""
        return self._present.pop(model)

    def accumulated_in(self, buffer: Tensor) -> Tensor:
        """Return a view of the part of a model's buffer that holds its gradients and loss."""
        return buffer[-self._packed.accumulated.numel() :]

    def reuse(self, buffer: Tensor) -> None:
        """Take back a buffer whose content is no longer needed."""
        self._spare.append(buffer)

    @contextmanager
    def aboard(self, model: int) -> Iterator[PackedModel]:
        """Let the replica's module be a model during the block, and accumulate in its buffer."""
        buffer = self._present[model]
        if self._moves_parameters:
            count = self._packed.parameters.numel()
            parameters, accumulated = buffer[:count], buffer[count:]
        else:
            parameters, accumulated = self._packed.parameters, buffer
        with self._packed.swap_in(parameters, accumulated):
            yield self._packed

    def unload(self) -> None:
        """Add the gradients and losses of all models here to the replica, in order of model."""
        for model in sorted(self._present):
            buffer = self._present.pop(model)
            self._packed.accumulated += self.accumulated_in(buffer)
            self.reuse(buffer)
