"""Parity of engines: comparing recorded gradients with the gradient of a single process.

Losses of engines are also compared with each other. A value that is not a number counts as an
unbounded difference: it is shown, and an engine with it does not pass.
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
"""Limits of relative differences of losses. The limit of float64 holds over a whole run, in which
updates let rounding grow from iteration to iteration."""
COMPARED_LOSSES: Final[dict[str, int | None]] = {"float32": 50, "float64": None}
"""Number of iterations of a run whose losses are compared; None = all."""
ROUNDING_CEILING: Final = 5e-2
"""The largest difference of a float32 gradient that rounding may explain; above it is an error.

A ReLU whose input is near zero may open in one order of summation and not in another. A deep
network has many such inputs, and one of them can be a hundredth of the gradient of a node type with
few nodes."""
LOSS_CEILING: Final = 1e-3
"""The largest difference of a float32 loss that rounding may explain.

An optimiser takes steps along the rounding errors of tiny gradients. While a loss falls fast, runs
whose gradients differ by 1e-6 are about 1e-4 apart after a dozen steps."""
ROUNDINGS: Final = 10.0
"""Two float32 gradients may differ by this many times a single process's own rounding."""
ROUNDED_LIMIT: Final = 0.1
"""The limit for engines that round on purpose. A larger difference is an error, not rounding."""
SMALLEST_NORM: Final = 1e-6
"""Share of the largest gradient norm. Tensors with smaller norms count only in the overall measure.
"""


@dataclass(frozen=True)
class RecordedGradient:
    """Rank 0's record of an iteration: parameters before the update, gradient and loss."""

    path: Path
    step: int
    epoch: int
    iteration: int
    loss: float
    parameters: dict[str, Tensor]
    gradients: dict[str, Tensor]


@dataclass(frozen=True)
class GradientDifference:
    """The difference of a gradient from the reference's, in one iteration.

    Attributes
    ----------
    step: number of the iteration, from the start of the run.
    overall: max |difference| / max |gradient| over all parameters.
    by_tensor: ||difference|| / ||gradient|| by tensor, if that norm is not negligible.
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
    """Measurements in float64 of a gradient that float32 cannot judge.

    Attributes
    ----------
    difference: the difference of the engine, run again in float64.
    rounding: the difference between a single process's gradients in float32 and in float64, at the
        parameters of the float32 run.
    """

    difference: float
    rounding: float


@dataclass(frozen=True)
class EngineParity:
    """One engine's differences, judged by the limits of the run's dtype.

    Attributes
    ----------
    engine: label of the contender.
    dtype: the run's dtype.
    gradients: differences from the reference, by recorded iteration.
    loss_curve: largest relative difference of iteration losses from the other engine's.
    again: measurements in float64, if float32 is not conclusive; None = not needed.
    judged: False if the engine rounds on purpose, and only has to be near.
    losses_again: difference of losses in float64, if float32 is not conclusive; None = not needed.
    """

    engine: str
    dtype: str
    gradients: tuple[GradientDifference, ...]
    loss_curve: float
    again: InFloat64 | None = None
    judged: bool = True
    losses_again: float | None = None

    @property
    def gradient_difference(self) -> float:
        """The largest difference over all recorded iterations; NaN if any is NaN."""
        return worst([moment.largest for moment in self.gradients])

    @property
    def loss_difference(self) -> float:
        """The largest difference from the losses of the reference and the other engine, or NaN."""
        return worst([self.loss_curve, *(moment.loss for moment in self.gradients)])

    @property
    def needs_float64(self) -> bool:
        """Return whether the gradients in float32 cannot tell an error from rounding."""
        limit = GRADIENT_LIMITS[self.dtype]
        return (
            self.judged
            and self.dtype == "float32"
            and limit < self.gradient_difference <= ROUNDING_CEILING
        )

    @property
    def needs_losses_in_float64(self) -> bool:
        """Return whether the losses in float32 cannot tell an error from rounding."""
        limit = LOSS_LIMITS[self.dtype]
        return (
            self.judged
            and self.dtype == "float32"
            # At equal parameters rounding does not grow, so these losses must be within the limit.
            and worst(moment.loss for moment in self.gradients) <= limit
            and limit < self.loss_curve <= LOSS_CEILING
        )

    @property
    def problems(self) -> list[str]:
        """The reasons why this engine fails; empty if it passes."""
        verdicts = (
            judge_gradient(self.gradient_difference, self.dtype, self.again, self.judged),
            judge_losses(self.loss_difference, self.dtype, self.losses_again, self.judged),
        )
        return [f"{self.engine}: {verdict}" for verdict in verdicts if verdict]


def judge_gradient(difference: float, dtype: str, again: InFloat64 | None, judged: bool) -> str:
    """Say what is wrong with a gradient; "" if nothing is.

    A float32 gradient over its limit passes on two conditions. The engine must be within the limit
    of float64. The difference must be at most :data:`ROUNDINGS` times the rounding of a single
    process in any of its orders of summation.

    Parameters
    ----------
    judged: False if the engine rounds on purpose.
    """
    limit = GRADIENT_LIMITS[dtype] if judged else ROUNDED_LIMIT
    # Comparisons are written so that NaN fails them.
    if difference <= limit:
        return ""
    fault = f"gradients differ by {difference:.2g}, limit {limit:g} in {dtype}"
    if not judged or again is None or not difference <= ROUNDING_CEILING:
        return fault
    exact_limit = GRADIENT_LIMITS["float64"]
    if not again.difference <= exact_limit:
        return f"{fault}; by {again.difference:.2g}, limit {exact_limit:g} in float64"
    if not difference <= ROUNDINGS * again.rounding:
        return f"{fault}, of which rounding explains {again.rounding:.2g}"
    return ""


def judge_losses(difference: float, dtype: str, again: float | None, judged: bool) -> str:
    """Say what is wrong with losses; "" if nothing is.

    Parameters
    ----------
    again: the difference of the same runs in float64, if they were made.
    judged: False if the engine rounds on purpose.
    """
    limit = LOSS_LIMITS[dtype] if judged else ROUNDED_LIMIT
    if difference <= limit:
        return ""
    fault = f"losses differ by {difference:.2g}, limit {limit:g} in {dtype}"
    if not judged or again is None or not difference <= LOSS_CEILING:
        return fault
    if again <= LOSS_LIMITS["float64"]:
        return ""
    return f"{fault}; by {again:.2g}, limit {LOSS_LIMITS['float64']:g} in float64"


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


def measure_rounding(moment: RecordedGradient, rounded: Reference, exact: Reference) -> float:
    """Return the difference of a single process's gradient from its own in float64, in one
    iteration."""
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
    """Measure the difference of a gradient from the reference's, in float64.

    Raises
    ------
    RequestError: the gradients have different parameters.
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
    """Return the largest relative difference of two curves of losses, over the iterations to
    compare.

    It is infinite for curves of different length.
    """
    if len(losses) != len(others):
        return math.inf
    compared = COMPARED_LOSSES[dtype]
    return worst(
        _relative(abs(a - b), abs(b))
        for a, b in zip(losses[:compared], others[:compared], strict=True)
    )


def read_recorded(folder: Path) -> list[RecordedGradient]:
    """Read all recorded gradients of a run, in order of iteration.

    Raises
    ------
    RequestError: there are none, or Hopper did not write one of the files.
    """
    gradients = [_read(path) for path in folder.glob("*.safetensors")]
    if not gradients:
        raise RequestError(f"{folder}: expected recorded gradients, found none")
    return sorted(gradients, key=lambda gradient: gradient.step)


def worst(values: Iterable[float]) -> float:
    """Return the largest value; 0 if there are none, NaN if any is NaN."""
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
                parameters=_select_prefix(tensors, "model."),
                gradients=_select_prefix(tensors, "gradient."),
            )
    except (SafetensorError, KeyError, ValueError) as error:
        raise RequestError(f"{path}: not a recorded gradient: {error}") from error


def _select_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, which is removed from the names."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _largest_entry(tensors: Mapping[str, Tensor]) -> float:
    # torch's max is NaN if any entry is.
    return worst(float(value.abs().max()) for value in tensors.values() if value.numel())


def _relative(difference: float, size: float) -> float:
    if difference == 0.0 and math.isfinite(size):
        return 0.0
    if size == 0.0:
        return math.nan if math.isnan(difference) else math.inf
    return difference / size
