"""A callback that ends the training when the loss is low enough, and freezes parameters until then.

    hopper train CONFIG --train.callbacks '["early_enough:EarlyEnough"]' \\
        --train.callbacks_options '[{loss = 0.3, frozen = ["layers.0"], epochs = 2}]'
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopper import Callback, Running


class EarlyEnough(Callback):
    """Ends the training.

    Parameters
    ----------
    loss: of an epoch, at which it ends.
    frozen: beginnings of names of parameters that the first ``epochs`` do not change.
    """

    def __init__(
        self, *, run_dir: Path, loss: float, frozen: list[str] | None = None, epochs: int = 0
    ) -> None:
        self._loss, self._frozen, self._epochs = loss, tuple(frozen or ()), epochs

    def gradient(self, run: Running) -> None:
        """See :class:`Callback`: without a gradient, and without weight decay, nothing changes."""
        if run.epoch < self._epochs:
            for name, parameter in run.model.named_parameters():
                if name.startswith(self._frozen) and parameter.grad is not None:
                    parameter.grad.zero_()

    def epoch(self, run: Running, record: Mapping[str, Any]) -> bool:
        """See :class:`Callback`."""
        return bool(record["loss"] <= self._loss)
