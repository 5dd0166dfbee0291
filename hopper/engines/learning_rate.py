"""How the learning rate changes over a run.

A schedule is a function of the update's number and of their number in all, and of nothing else, so
a resumed run needs no state of it. What it returns multiplies ``train.learning_rate`` and
``learnable.learning_rate`` alike.
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
    """What multiplies the learning rate at every update."""

    def factor(self, step: int, steps: int) -> float:
        """A finite number, 0 or more, that depends on nothing but its arguments.

        Parameters
        ----------
        step: number of the update, from 0.
        steps: updates of the whole run: iterations of an epoch times ``train.epochs``.
        """
        ...


class Constant:
    """The learning rate stays what it is."""

    def factor(self, step: int, steps: int) -> float:
        """See :class:`LearningRateSchedule`."""
        return 1.0


class WarmUp:
    """The factor rises evenly, from one over the number of warm-up updates to 1, and stays there.

    Parameters
    ----------
    warmup_steps: updates that it takes.
    warmup_fraction: the same as a share of the run; one of the two.
    """

    def __init__(self, warmup_steps: Count = 0, warmup_fraction: Share = 0.0) -> None:
        if warmup_steps and warmup_fraction:
            raise ValueError("expected warmup_steps or warmup_fraction, not both")
        self._steps = warmup_steps
        self._fraction = warmup_fraction

    def factor(self, step: int, steps: int) -> float:
        """See :class:`LearningRateSchedule`."""
        warmup = self._steps or math.floor(self._fraction * steps)
        if step < warmup:
            return (step + 1) / warmup
        return self._after(step - warmup, max(1, steps - warmup))

    def _after(self, step: int, steps: int) -> float:
        """The factor at an update after warming up, of so many."""
        return 1.0


class Cosine(WarmUp):
    """Half a cosine from 1 to ``minimum`` (Loshchilov and Hutter, ICLR 2017, without restarts).

    Parameters
    ----------
    minimum: what the factor falls to.
    warmup_steps, warmup_fraction: as of :class:`WarmUp`; the cosine begins after it.
    """

    def __init__(
        self, minimum: Share = 0.0, warmup_steps: Count = 0, warmup_fraction: Share = 0.0
    ) -> None:
        super().__init__(warmup_steps, warmup_fraction)
        self._minimum = minimum

    def _after(self, step: int, steps: int) -> float:
        swing = (1.0 + math.cos(math.pi * min(step, steps) / steps)) / 2
        return self._minimum + (1.0 - self._minimum) * swing


class Step(WarmUp):
    """Multiplied by ``gamma`` after every ``step_size`` updates, and never below ``minimum``.

    Parameters
    ----------
    step_size: in updates.
    gamma: what the factor is multiplied by each time.
    minimum: what the factor does not fall below.
    warmup_steps, warmup_fraction: as of :class:`WarmUp`; steps are counted after it.
    """

    def __init__(
        self,
        step_size: Annotated[int, Field(ge=1)],
        gamma: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1,
        minimum: Share = 0.0,
        warmup_steps: Count = 0,
        warmup_fraction: Share = 0.0,
    ) -> None:
        super().__init__(warmup_steps, warmup_fraction)
        self._step_size = step_size
        self._gamma = gamma
        self._minimum = minimum

    def _after(self, step: int, steps: int) -> float:
        return max(self._minimum, self._gamma ** (step // self._step_size))


SCHEDULES: Final[Mapping[str, Callable[..., LearningRateSchedule]]] = {
    "constant": Constant,
    "cosine": Cosine,
    "step": Step,
    "warmup": WarmUp,
}


@dataclass(frozen=True)
class Pace:
    """A schedule over a run of known length.

    Attributes
    ----------
    iterations: of an epoch.
    """

    schedule: LearningRateSchedule
    epochs: int
    iterations: int

    def factor_at(self, epoch: int, iteration: int) -> float:
        """What multiplies learning rates at the update of an iteration.

        Raises
        ------
        ConfigError: the schedule gave something else than a finite number, 0 or more.
        """
        step, steps = epoch * self.iterations + iteration, self.epochs * self.iterations
        factor = self.schedule.factor(step, steps)
        if not isinstance(factor, (int, float)) or not 0.0 <= factor < math.inf:
            raise ConfigError(
                f"train.schedule: {type(self.schedule).__name__}: expected a finite number, 0 or "
                f"more, at update {step} of {steps}; got {factor!r:.200}"
            )
        return float(factor)

    def check(self) -> None:
        """Ask for the first, a middle and the last factor; errors as of :meth:`factor_at`."""
        last_epoch, last = self.epochs - 1, self.iterations - 1
        for epoch, iteration in ((0, 0), (self.epochs // 2, 0), (last_epoch, last)):
            self.factor_at(epoch, iteration)


CONSTANT: Final = Pace(Constant(), 1, 1)
"""of who does not train by a schedule"""
