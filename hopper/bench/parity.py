"""Do engines compute the same gradient? Recorded gradients against the single-process one.

Measures of design.md, invariant 2, and the losses of engines against each other. A value that is
not a number counts as a difference without bound: it is shown, and nothing passes with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor

from hopper.engines.reference import Reference
from hopper.errors import RequestError

GRADIENT_LIMITS: Final = {"float32": 1e-5, "float64": 1e-10}
LOSS_LIMITS: Final = {"float32": 1e-5, "float64": 1e-9}
"""float64 over a whole run; updates let rounding grow from iteration to iteration"""
COMPARED_LOSSES: Final[dict[str, int | None]] = {"float32": 50, "float64": None}
"""iterations of a run whose losses are compared; None = all"""
ROUNDING_CEILING: Final = 5e-2
"""of a float32 gradient that rounding alone may explain: a ReLU whose input is near zero opens in
one order of summation and not in another, a deep network has many, and a single one can make out a
hundredth of what a type of few nodes learns; above this it is an error"""
LOSS_CEILING: Final = 1e-3
"""the same of a loss: an optimiser makes steps of what rounding left of tiny gradients, and while a
loss falls fast, runs whose gradients differ by 1e-6 are some 1e-4 apart after a dozen of them"""
ROUNDINGS: Final = 10.0
"""how many times one process's own rounding two float32 gradients may lie apart"""
ROUNDED_LIMIT: Final = 0.1
"""of engines that round on purpose: what is further off is broken and not rounded"""
SMALLEST_NORM: Final = 1e-6
"""of the largest gradient norm: smaller tensors are judged by the overall measure only"""


@dataclass(frozen=True)
class RecordedGradient:
    """What rank 0 wrote about an iteration: parameters before the update, gradient, loss."""

    path: Path
    step: int
    epoch: int
    iteration: int
    loss: float
    parameters: dict[str, Tensor]
    gradients: dict[str, Tensor]


@dataclass(frozen=True)
class GradientDifference:
    """How far a gradient is from the reference's, at one moment.

    overall: max |difference| / max |gradient| over all parameters.
    by_tensor: ||difference|| / ||gradient|| per tensor, where that norm is not negligible.
    loss: |difference| / |loss|.
    """

    step: int
    overall: float
    by_tensor: dict[str, float]
    loss: float

    @property
    def largest(self) -> float:
        """The larger of both gradient measures; NaN if any is."""
        return worst([self.overall, *self.by_tensor.values()])


class InFloat64(NamedTuple):
    """What float64 says of a gradient that float32 cannot judge.

    difference: the engine's, run again in float64. rounding: of one process's float32 gradient from
    its own in float64, at the parameters of the float32 run.
    """

    difference: float
    rounding: float


@dataclass(frozen=True)
class EngineParity:
    """One engine's differences, and the limits of the run's dtype."""

    engine: str
    dtype: str
    gradients: tuple[GradientDifference, ...]
    loss_curve: float
    """largest relative difference of iteration losses to the engine compared with"""
    again: InFloat64 | None = None
    """what float64 says, where float32 alone does not tell; None = not needed"""
    judged: bool = True
    """False: the engine rounds on purpose; it only has to be near"""
    losses_again: float | None = None
    """the losses' difference in float64, where float32 alone does not tell; None = not needed"""

    @property
    def gradient_difference(self) -> float:
        """The largest over all recorded moments; NaN if any is."""
        return worst([moment.largest for moment in self.gradients])

    @property
    def loss_difference(self) -> float:
        """The largest to the reference's losses and to the other engine's curve; NaN if any is."""
        return worst([self.loss_curve, *(moment.loss for moment in self.gradients)])

    @property
    def needs_float64(self) -> bool:
        """Whether float32 cannot tell an error from rounding."""
        limit = GRADIENT_LIMITS[self.dtype]
        return (
            self.judged
            and self.dtype == "float32"
            and limit < self.gradient_difference <= ROUNDING_CEILING
        )

    @property
    def needs_losses_in_float64(self) -> bool:
        """Whether the losses of float32 cannot tell an error from rounding."""
        limit = LOSS_LIMITS[self.dtype]
        return (
            self.judged
            and self.dtype == "float32"
            # At equal parameters rounding does not grow: those losses have to be equal.
            and worst(moment.loss for moment in self.gradients) <= limit
            and limit < self.loss_curve <= LOSS_CEILING
        )

    @property
    def problems(self) -> list[str]:
        """Why this engine fails; empty where it passes."""
        words = (
            judge_gradient(self.gradient_difference, self.dtype, self.again, self.judged),
            judge_losses(self.loss_difference, self.dtype, self.losses_again, self.judged),
        )
        return [f"{self.engine}: {each}" for each in words if each]


def judge_gradient(difference: float, dtype: str, again: InFloat64 | None, judged: bool) -> str:
    """What is wrong with a gradient, in words; empty where nothing is.

    A float32 gradient over its limit passes if the same engine is within the limit of float64, and
    no further off than a few times what one process's own gradient is, for rounding, in the orders
    of summation that it has.

    Parameters
    ----------
    judged: False where the engine rounds on purpose.
    """
    limit = GRADIENT_LIMITS[dtype] if judged else ROUNDED_LIMIT
    # Not "value > limit", which a NaN would pass.
    if difference <= limit:
        return ""
    told = f"gradients differ by {difference:.2g}, limit {limit:g} in {dtype}"
    if not judged or again is None or not difference <= ROUNDING_CEILING:
        return told
    if not again.difference <= GRADIENT_LIMITS["float64"]:
        return f"{told}; by {again.difference:.2g}, limit {GRADIENT_LIMITS['float64']:g} in float64"
    if not difference <= ROUNDINGS * again.rounding:
        return f"{told}, of which rounding explains {again.rounding:.2g}"
    return ""


def judge_losses(difference: float, dtype: str, again: float | None, judged: bool) -> str:
    """What is wrong with losses; as :func:`judge_gradient`.

    Parameters
    ----------
    again: the difference of the same runs in float64.
    """
    limit = LOSS_LIMITS[dtype] if judged else ROUNDED_LIMIT
    if difference <= limit:
        return ""
    told = f"losses differ by {difference:.2g}, limit {limit:g} in {dtype}"
    if not judged or again is None or not difference <= LOSS_CEILING:
        return told
    if again <= LOSS_LIMITS["float64"]:
        return ""
    return f"{told}; by {again:.2g}, limit {LOSS_LIMITS['float64']:g} in float64"


def check_engine(
    engine: str, dtype: str, reference: Reference, recorded: Iterable[RecordedGradient]
) -> EngineParity:
    """Compare an engine's recorded gradients with the reference at the same parameters."""
    differences = []
    for moment in recorded:
        loss, gradients = reference.gradient(moment.epoch, moment.iteration, moment.parameters)
        differences.append(
            compare_gradients(moment.step, moment.gradients, gradients, moment.loss, loss)
        )
    if not differences:
        raise RequestError(f"{engine}: no gradient was recorded")
    return EngineParity(engine, dtype, tuple(differences), 0.0)


def own_rounding(moment: RecordedGradient, rounded: Reference, exact: Reference) -> float:
    """How far one process's gradient is from its own in float64, at a moment's parameters."""
    where = moment.epoch, moment.iteration
    loss, gradients = rounded.gradient(*where, moment.parameters)
    parameters = {
        name: value.double() if value.is_floating_point() else value
        for name, value in moment.parameters.items()
    }
    exact_loss, exact_gradients = exact.gradient(*where, parameters)
    return compare_gradients(moment.step, gradients, exact_gradients, loss, exact_loss).largest


def compare_gradients(
    step: int,
    gradients: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    loss: float,
    reference_loss: float,
) -> GradientDifference:
    """Both measures of invariant 2, computed in float64.

    Raises
    ------
    RequestError: the gradients are of different parameters.
    """
    shapes = {name: tuple(value.shape) for name, value in reference.items()}
    if shapes != {name: tuple(value.shape) for name, value in gradients.items()}:
        raise RequestError(
            f"gradients of different parameters: {sorted(gradients)} and {sorted(reference)}"
        )
    expected = {name: value.double() for name, value in reference.items()}
    difference = {name: gradients[name].double() - value for name, value in expected.items()}
    overall = _relative(_largest_entry(difference), _largest_entry(expected))
    norms = {name: float(value.norm()) for name, value in expected.items()}
    significant = SMALLEST_NORM * worst(norms.values())
    by_tensor = {
        name: _relative(float(difference[name].norm()), norm)
        for name, norm in norms.items()
        if not norm <= significant
    }
    return GradientDifference(
        step, overall, by_tensor, _relative(abs(loss - reference_loss), abs(reference_loss))
    )


def compare_losses(losses: Sequence[float], others: Sequence[float], dtype: str) -> float:
    """The largest relative difference of two loss curves, as far as they are compared.

    Curves of different length differ without bound.
    """
    if len(losses) != len(others):
        return math.inf
    compared = COMPARED_LOSSES[dtype]
    return worst(
        _relative(abs(a - b), abs(b))
        for a, b in zip(losses[:compared], others[:compared], strict=True)
    )


def read_recorded(folder: Path) -> list[RecordedGradient]:
    """All recorded gradients of a run, in order of iteration.

    Raises
    ------
    RequestError: there is none, or a file is not one that Hopper wrote.
    """
    found = sorted((_read(path) for path in folder.glob("*.safetensors")), key=lambda r: r.step)
    if not found:
        raise RequestError(f"{folder}: expected recorded gradients, found none")
    return found


def worst(values: Iterable[float]) -> float:
    """The largest value, 0 without any; NaN if any is NaN."""
    largest = 0.0
    for value in values:
        if math.isnan(value):
            return math.nan
        largest = max(largest, value)
    return largest


def _read(path: Path) -> RecordedGradient:
    try:
        with safe_open(str(path), framework="pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return RecordedGradient(
                path=path,
                step=int(path.stem.removeprefix("step-")),
                epoch=int(facts["epoch"]),
                iteration=int(facts["iteration"]),
                loss=float(facts["loss"]),
                parameters=_named(tensors, "model."),
                gradients=_named(tensors, "gradient."),
            )
    except (SafetensorError, KeyError, ValueError) as error:
        raise RequestError(f"{path}: not a recorded gradient: {error}") from error


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _largest_entry(tensors: Mapping[str, Tensor]) -> float:
    # torch's max hands NaN on.
    return worst(float(value.abs().max()) for value in tensors.values() if value.numel())


def _relative(difference: float, size: float) -> float:
    if difference == 0.0 and math.isfinite(size):
        return 0.0
    if size == 0.0:
        return math.nan if math.isnan(difference) else math.inf
    return difference / size
