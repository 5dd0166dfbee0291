"""What a report may claim: figures per engine, speed-ups or why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopper.bench.parity import GRADIENT_LIMITS, LOSS_LIMITS, judge_gradient
from hopper.bench.report.source import Run, Source
from hopper.bench.statistics import BASELINES, Figures, Ratio, figures, speed_up
from hopper.engines import ENGINE_CLASSES


@dataclass(frozen=True)
class Findings:
    """Derived from a source alone.

    problems: why no speed-up may be told; empty where all exact engines computed the same.
    wrong_gradients: what is wrong, in words, of those that do not pass.
    rounding: those whose differences are shown and not judged.
    ratios: by baseline and name, how many times faster; without the baseline itself.
    unpaired: sentences on comparisons that cannot be made.
    """

    figures: Mapping[str, Figures]
    approximate: frozenset[str]
    gradients: Mapping[str, float | None]
    wrong_gradients: Mapping[str, str]
    rounding: frozenset[str]
    losses: Mapping[str, float | None]
    gradient_limit: float
    loss_limit: float
    problems: tuple[str, ...]
    baselines: tuple[str, ...]
    ratios: Mapping[str, Mapping[str, Ratio]]
    unpaired: tuple[str, ...]

    def ratio(self, name: str, baseline: str) -> Ratio | None:
        """A speed-up, if it may be told."""
        return self.ratios.get(baseline, {}).get(name)


def find(source: Source) -> Findings:
    """Judge a source as the A/B runner does: parity first, then times."""
    entries = [_entry(run) for run in source.results.runs]
    approximate = frozenset(run.name for run in source.results.runs if not _is_exact(run))
    train = source.results.config.get("train", {})
    dtype = str(train.get("dtype", "float32")) if isinstance(train, Mapping) else "float32"
    limits = [each.get(dtype, each["float32"]) for each in (GRADIENT_LIMITS, LOSS_LIMITS)]
    gradients, in_float64, losses = (
        _differences(source, f"max_relative_{what}")
        for what in ("gradient_difference", "gradient_difference_in_float64", "loss_difference")
    )
    parity = source.results.parity
    rounding = frozenset(parity.not_judged if parity else ())
    judged = {n: v for n, v in gradients.items() if v is not None and n not in rounding}
    wrong = {
        name: words
        for name, value in judged.items()
        if (words := judge_gradient(value, dtype, in_float64[name]))
    }
    problems: list[str] = []
    if source.kind == "ab":
        # An approximate engine is exact on batches of its own, where that was checked.
        due = [name for name in source.names if name not in approximate]
        for what, found in (("gradients", gradients), ("losses", losses)):
            problems += [
                f"{name}: {what} were not compared with the reference's"
                for name in due
                if found[name] is None
            ]
        problems += [f"{name}: {words}" for name, words in wrong.items()]
        problems += [
            f"{name}: losses differ by {value:.2g}, limit {limits[1]:g} in {dtype}"
            for name, value in losses.items()
            # Not "value > limit", which a NaN would pass.
            if value is not None and name not in rounding and not value <= limits[1]
        ]
    ratios, unpaired = _ratios(source, entries) if not problems else ({}, [])
    return Findings(
        figures={name: figures(entries, name) for name in source.names},
        approximate=approximate,
        gradients=gradients,
        wrong_gradients=wrong,
        rounding=rounding,
        losses=losses,
        gradient_limit=limits[0],
        loss_limit=limits[1],
        problems=tuple(problems),
        baselines=tuple(name for name in BASELINES if name in source.names),
        ratios=ratios,
        unpaired=tuple(unpaired),
    )


def _entry(run: Run) -> dict[str, Any]:
    """A run as hopper.bench.statistics reads it, known by its name."""
    return run.model_dump() | {"engine": run.name, "label": run.name}


def _is_exact(run: Run) -> bool:
    if run.exact is not None:
        return run.exact
    engine = ENGINE_CLASSES.get(run.engine)
    return engine is None or engine.exact


def _differences(source: Source, key: str) -> dict[str, float | None]:
    engines = {run.name: run.engine for run in source.results.runs}
    parity = source.results.parity
    told: Mapping[str, float] = getattr(parity, key) if parity else {}
    return {name: told.get(name, told.get(engine)) for name, engine in engines.items()}


def _ratios(
    source: Source, entries: list[dict[str, Any]]
) -> tuple[dict[str, dict[str, Ratio]], list[str]]:
    ratios: dict[str, dict[str, Ratio]] = {}
    unpaired = []
    for baseline in (name for name in BASELINES if name in source.names):
        ratios[baseline] = {}
        for name in source.names:
            if name == baseline:
                continue
            try:
                ratios[baseline][name] = speed_up(entries, name, baseline)
            except ValueError as error:
                unpaired.append(f"{name} against {baseline}: {error}")
    return ratios, unpaired
