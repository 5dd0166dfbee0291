"""Schedules of the learning rate over a run.

They have no state, which a resumed run would need. Their factor multiplies both
``train.learning_rate`` and ``learnable.learning_rate``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from pydantic import Field

from hopper.errors import ConfigError

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=0)]


class LearningRateSchedule(Protocol):
    """Returns the factor of the learning rate at every update."""

    def factor(self, step: int, steps: int) -> float:
        """Return a finite number, 0 or more, that depends on nothing but the arguments.

        Parameters
        ----------
        step: the number of the update, from 0.
        steps: all updates of the run: the iterations of an epoch times ``train.epochs``.
        """
        ...


class Constant:
    """Keeps the learning rate as it is."""

    def factor(self, step: int, steps: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Raises the factor evenly from one over the number of warm-up updates to 1, and keeps it.

    Parameters
    ----------
    warmup_steps: the number of warm-up updates.
    warmup_fraction: the same as a share of the run. Only one of the two may be given.
    """

    warmup_steps: Count = 0
    warmup_fraction: Share = 0.0

    def __post_init__(self) -> None:
        if self.warmup_steps and self.warmup_fraction:
            raise ValueError("expected warmup_steps or warmup_fraction, not both")

    def factor(self, step: int, steps: int) -> float:
        """Return a share of 1 while warming up, then what follows the warm-up."""
        warmup = self.warmup_steps or math.floor(self.warmup_fraction * steps)
        if step < warmup:
            return (step + 1) / warmup
        return self._after(step - warmup, max(1, steps - warmup))

    def _after(self, step: int, steps: int) -> float:
        """Return the factor at update ``step`` of the ``steps`` that follow the warm-up."""
        return 1.0


@dataclass(frozen=True, kw_only=True)
class Cosine(WarmUp):
    """Lowers the factor after the warm-up along half a cosine from 1 to ``minimum``.

    Loshchilov and Hutter, ICLR 2017, without restarts.
    """

    minimum: Share = 0.0

    def _after(self, step: int, steps: int) -> float:
        swing = (1.0 + math.cos(math.pi * min(step, steps) / steps)) / 2
        return self.minimum + (1.0 - self.minimum) * swing


@dataclass(frozen=True, kw_only=True)
class Step(WarmUp):
    """Multiplies the factor by ``gamma`` after every ``step_size`` updates that follow the warm-up,
    down to ``minimum``."""

    step_size: Annotated[int, Field(ge=1)]
    gamma: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    minimum: Share = 0.0

    def _after(self, step: int, steps: int) -> float:
        return max(self.minimum, self.gamma ** (step // self.step_size))


SCHEDULES: Final[Mapping[str, Callable[..., LearningRateSchedule]]] = {
    "constant": Constant,
    "cosine": Cosine,
    "step": Step,
    "warmup": WarmUp,
}


@dataclass(frozen=True)
class LRScheduler:
    """A schedule over a run of some epochs, each of some iterations."""

    schedule: LearningRateSchedule
    epochs: int
    iterations: int

    def factor_at(self, epoch: int, iteration: int) -> float:
        """Return the factor of learning rates at the update of an iteration."""
        step, steps = epoch * self.iterations + iteration, self.epochs * self.iterations
        factor = self.schedule.factor(step, steps)
        if not isinstance(factor, (int, float)) or not 0.0 <= factor < math.inf:
            raise ConfigError(
                f"train.schedule: {type(self.schedule).__name__}: expected a finite number, 0 or "
                f"more, at update {step} of {steps}; got {factor!r:.200}"
            )
        return float(factor)

    def check(self) -> None:
        """Compute the first, a middle and the last factor; raises as :meth:`factor_at`."""
        last_epoch, last = self.epochs - 1, self.iterations - 1
        for epoch, iteration in ((0, 0), (self.epochs // 2, 0), (last_epoch, last)):
            self.factor_at(epoch, iteration)


CONSTANT: Final = LRScheduler(Constant(), 1, 1)
