"""The models that stand on a rank during an iteration (HopGNN, section 5.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from hopper.migrate.packed_model import PackedModel


class Dock:
    """Buffers of visiting models, and the module that becomes one of them at a time.

    Where replicas are synchronous, every model has the parameters of this rank's replica at the
    start of an iteration, so a model can start on any rank, and gradients alone are enough to move.
    An independent model has a dock of its own on every rank; it starts and ends at home.

    Parameters
    ----------
    packed: this rank's replica.
    moves_parameters: whether a model's buffer holds its parameters too.
    """

    def __init__(self, packed: PackedModel, moves_parameters: bool) -> None:
        self._packed = packed
        self._shape = packed.buffer if moves_parameters else packed.accumulated
        self._moves_parameters = moves_parameters
        self._standing: dict[int, Tensor] = {}
        self._spare: list[Tensor] = []

    def start(self, models: Sequence[int]) -> None:
        """Let models start here, with the replica's parameters and nothing accumulated."""
        for model in models:
            buffer = self.empty_buffer()
            if self._moves_parameters:
                count = self._packed.parameters.numel()
                buffer[:count].copy_(self._packed.parameters)
                buffer[count:].zero_()
            else:
                buffer.zero_()
            self._standing[model] = buffer

    def empty_buffer(self) -> Tensor:
        """A buffer of unspecified content, to receive a model into."""
        return self._spare.pop() if self._spare else torch.empty_like(self._shape)

    def enter(self, model: int, buffer: Tensor) -> None:
        """A model has come."""
        self._standing[model] = buffer

    def leave(self, model: int) -> Tensor:
        """A model goes; give its buffer back to :meth:`reuse` when it has gone."""
        return self._standing.pop(model)

    def accumulated_in(self, buffer: Tensor) -> Tensor:
        """The part of a model's buffer that holds its gradients and loss; a view."""
        return buffer[-self._packed.accumulated.numel() :]

    def reuse(self, buffer: Tensor) -> None:
        """A buffer's content is no longer needed."""
        self._spare.append(buffer)

    @contextmanager
    def aboard(self, model: int) -> Iterator[PackedModel]:
        """The replica's module as this model: what it accumulates goes where the model goes."""
        buffer = self._standing[model]
        if self._moves_parameters:
            count = self._packed.parameters.numel()
            parameters, accumulated = buffer[:count], buffer[count:]
        else:
            parameters, accumulated = self._packed.parameters, buffer
        with self._packed.standing_in(parameters, accumulated):
            yield self._packed

    def unload(self) -> None:
        """Add what the standing models accumulated to the replica, in order of model."""
        for model in sorted(self._standing):
            buffer = self._standing.pop(model)
            self._packed.accumulated += self.accumulated_in(buffer)
            self.reuse(buffer)
