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
    """Ends the training when the loss is low enough.

    Parameters
    ----------
    loss: the training ends after an epoch with at most this loss.
    frozen: prefixes of the names of parameters to freeze.
    epochs: how many epochs the parameters stay frozen.
    """

    def __init__(
        self, *, run_dir: Path, loss: float, frozen: list[str] | None = None, epochs: int = 0
    ) -> None:
        self._loss, self._frozen, self._epochs = loss, tuple(frozen or ()), epochs

    def gradient(self, run: Running) -> None:
        """Set the gradients of frozen parameters to zero. Weight decay would still change them."""
        if run.epoch < self._epochs:
            for name, parameter in run.model.named_parameters():
                if name.startswith(self._frozen) and parameter.grad is not None:
                    parameter.grad.zero_()

    def epoch(self, run: Running, record: Mapping[str, Any]) -> bool:
        """End the training if the epoch's loss is low enough."""
        return bool(record["loss"] <= self._loss)
