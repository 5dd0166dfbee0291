"""The factor of the loss under float16, whose small numbers would otherwise become 0."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_FIRST: Final = 1024.0
_GROWS_AFTER: Final = 2000


class LossScale:
    """The factor of the loss in backward passes, by the rule of ``torch.amp.GradScaler``.

    It begins at 1,024, where few first gradients overflow. After a gradient that is not finite it
    is halved, but not below 1. After 2,000 finite ones in a row it is doubled. Powers of two round
    nothing. The class of torch itself looks at one process's gradients and skips the step of an
    optimiser of torch's, so only its rule is used.

    Parameters
    ----------
    is_on: whether products are in float16; otherwise the factor is always 1.
    """

    def __init__(self, is_on: bool = False) -> None:
        self._is_on = is_on
        # The factor, and how many finite gradients came since it last changed.
        self._state = torch.tensor([_FIRST if is_on else 1.0, 0.0], dtype=torch.float64)

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
        elif count + 1 == _GROWS_AFTER:
            factor, count = factor * 2, 0.0
        else:
            count += 1
        self._state.copy_(torch.tensor([factor, count], dtype=torch.float64))

    def state(self) -> dict[str, Tensor]:
        """Return the tensor on which the next factors depend, by name; nothing if it is off."""
        return {"loss_scale": self._state} if self._is_on else {}
