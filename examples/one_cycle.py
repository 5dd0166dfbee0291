"""A user-defined schedule: `train.schedule = "one_cycle:OneCycle"`. See docs/howto/plug-ins.md."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field


class OneCycle:
    """Up to the learning rate and down to almost nothing, along cosines (Smith and Topin, 2018).

    Parameters
    ----------
    peak: share of the run after which the factor is 1.
    start: the factor at the beginning.
    end: the factor at the end.
    """

    def __init__(
        self,
        peak: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.3,
        start: Annotated[float, Field(ge=0.0, le=1.0)] = 0.04,
        end: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0001,
    ) -> None:
        self._peak, self._start, self._end = peak, start, end

    def factor(self, step: int, steps: int) -> float:
        """The factor of the learning rate at update ``step`` of ``steps``."""
        top = self._peak * steps
        if step < top:
            return _between(self._start, 1.0, step / top)
        return _between(1.0, self._end, (step - top) / (steps - top))


def _between(first: float, last: float, share: float) -> float:
    """Half a cosine from one number to another."""
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2
