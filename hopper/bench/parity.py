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
from typing import Final

from safetensors import SafetensorError, safe_open
from torch import Tensor

from hopper.engines.reference import Reference
from hopper.errors import RequestError

LIMITS: Final = {
    "gradients": {"float32": 1e-5, "float64": 1e-10},
    "losses": {"float32": 1e-5, "float64": 1e-9},
}
"""Limits of relative differences. That of float64 losses holds over a whole run, in which updates
let rounding grow from iteration to iteration."""
COMPARED_LOSSES: Final = 50
"""Number of iterations of a float32 run whose losses are compared; in float64 all are."""
SETTLED_LIMIT: Final = 1e-2
"""The limit in float32 of an engine that is right in float64.

A ReLU whose input is near zero may open in one order of summation and not in another. One such
input of a hub moves a gradient by 1e-4, in a single process too."""
UNSETTLED_LIMIT: Final = 1e-3
"""The limit in float32 of an engine that could not be run in float64."""
ORDERS: Final = 8
"""The number of orders of summation over which a single process's gradient is compared."""
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
    """The difference of a gradient from the reference's, in one iteration of the run.

    overall: max |difference| / max |gradient| over all parameters. by_tensor: ||difference|| /
    ||gradient|| by tensor, if that norm is not negligible. loss: |difference| / |loss|.
    """

    step: int
    overall: float
    by_tensor: dict[str, float]
    loss: float

    @property
    def largest(self) -> float:
        """The larger of both gradient measures; NaN if any is."""
        return worst([self.overall, *self.by_tensor.values()])


@dataclass(frozen=True)
class EngineParity:
    """One engine's differences, judged by the limits of the run's dtype.

    Attributes
    ----------
    engine: label of the contender.
    dtype: the run's dtype.
    gradients: differences from the reference, by recorded iteration.
    loss_curve: largest relative difference of iteration losses from the other engine's.
    judged: False if the engine rounds on purpose, and only has to be near.
    roots: the size of the global batches.
    in_float64: the same engine in float64, which decides where float32 cannot; None = not run.
    spread: how far gradients of a single process in float32 differ between orders of summation,
        where float32 cannot decide.
    """

    engine: str
    dtype: str
    gradients: tuple[GradientDifference, ...]
    loss_curve: float
    judged: bool = True
    roots: int = 0
    in_float64: EngineParity | None = None
    spread: float | None = None

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
        """Return whether float32 cannot tell an error from rounding."""
        passes = (
            self.gradient_difference <= LIMITS["gradients"]["float32"]
            and self.loss_difference <= LIMITS["losses"]["float32"]
        )
        return self.judged and self.dtype == "float32" and not passes

    @property
    def problems(self) -> list[str]:
        """The reasons why this engine fails; empty if it passes."""
        again = self.in_float64
        gradient = None if again is None else again.gradient_difference
        loss = None if again is None else again.loss_difference
        verdicts = (
            judge("gradients", self.gradient_difference, self.dtype, gradient, self.judged),
            judge("losses", self.loss_difference, self.dtype, loss, self.judged),
        )
        return [f"{self.engine}: {verdict}" for verdict in verdicts if verdict]


def judge(what: str, difference: float, dtype: str, in_float64: float | None, judged: bool) -> str:
    """Say what is wrong with "gradients" or "losses"; "" if nothing is.

    Float64 (None = not run) decides where float32 is over its limit. Float32 must still be near.
    """
    limits = LIMITS[what]
    limit = limits[dtype] if judged else ROUNDED_LIMIT
    # Comparisons are written so that NaN fails them.
    if judged and dtype == "float32" and not difference <= limit:
        limit = UNSETTLED_LIMIT if in_float64 is None else SETTLED_LIMIT
        if in_float64 is not None and not in_float64 <= limits["float64"]:
            difference, limit, dtype = in_float64, limits["float64"], "float64"
    if difference <= limit:
        return ""
    return f"{what} differ by {difference:.2g}, limit {limit:g} in {dtype}"


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
    return EngineParity(engine, dtype, tuple(differences), 0.0, roots=reference.schedule.batch_size)


def measure_spread(reference: Reference, moment: RecordedGradient) -> float:
    """Return how far a single process's gradients of an iteration differ between :data:`ORDERS`
    orders of summation."""
    (loss, gradients), *others = (
        reference.gradient(moment.epoch, moment.iteration, moment.parameters, order)
        for order in range(ORDERS)
    )
    return worst(
        compare_gradients(moment.step, other, gradients, other_loss, loss).largest
        for other_loss, other in others
    )


def compare_gradients(
    step: int,
    gradients: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    loss: float,
    reference_loss: float,
) -> GradientDifference:
    """Measure the difference of a gradient from the reference's, in float64."""
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
    compare; infinite for curves of different length."""
    if len(losses) != len(others):
        return math.inf
    compared = COMPARED_LOSSES if dtype == "float32" else None
    pairs = zip(losses[:compared], others[:compared], strict=True)
    return worst(_relative(abs(a - b), abs(b)) for a, b in pairs)


def read_recorded(folder: Path) -> list[RecordedGradient]:
    """Read all recorded gradients of a run, in order of iteration."""
    gradients = [_read(path) for path in folder.glob("*.safetensors")]
    if not gradients:
        raise RequestError(f"{folder}: expected recorded gradients, found none")
    return sorted(gradients, key=lambda gradient: gradient.step)


def worst(values: Iterable[float]) -> float:
    """Return the largest value; 0 if there are none, NaN if any is NaN."""
    known = [0.0, *values]
    return math.nan if any(map(math.isnan, known)) else max(known)


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
    names = (name for name in tensors if name.startswith(prefix))
    return {name.removeprefix(prefix): tensors[name] for name in names}


def _largest_entry(tensors: Mapping[str, Tensor]) -> float:
    # torch's max is NaN if any entry is.
    return worst(float(value.abs().max()) for value in tensors.values() if value.numel())


def _relative(difference: float, size: float) -> float:
    if difference == 0.0 and math.isfinite(size):
        return 0.0
    if size == 0.0:
        return math.nan if math.isnan(difference) else math.inf
    return difference / size
