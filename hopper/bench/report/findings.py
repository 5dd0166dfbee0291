"""What a report may claim: figures per engine, speed-ups or why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hopper.bench.parity import GRADIENT_LIMITS, LOSS_LIMITS
from hopper.bench.report.source import Run, Source
from hopper.bench.statistics import BASELINES, Figures, Ratio, figures, speed_up
from hopper.engines import ENGINE_CLASSES


@dataclass(frozen=True)
class Findings:
    """Derived from a source alone.

    problems: why no speed-up may be told; empty where all exact engines computed the same.
    ratios: by baseline and name, how many times faster; without the baseline itself.
    unpaired: sentences on comparisons that cannot be made.
    """

    figures: Mapping[str, Figures]
    approximate: frozenset[str]
    gradients: Mapping[str, float | None]
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
    gradients, losses = _differences(source)
    problems: list[str] = []
    if source.kind == "ab":
        for what, found, limit in (
            ("gradients", gradients, limits[0]),
            ("losses", losses, limits[1]),
        ):
            # An approximate engine is exact on batches of its own, where that was checked.
            due = {n: v for n, v in found.items() if v is not None or n not in approximate}
            problems += _problems(what, due, limit, dtype)
    ratios, unpaired = _ratios(source, entries) if not problems else ({}, [])
    return Findings(
        figures={name: figures(entries, name) for name in source.names},
        approximate=approximate,
        gradients=gradients,
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


def _differences(source: Source) -> tuple[dict[str, float | None], dict[str, float | None]]:
    parity = source.results.parity
    engines = {run.name: run.engine for run in source.results.runs}
    found: list[dict[str, float | None]] = []
    for key in ("max_relative_gradient_difference", "max_relative_loss_difference"):
        told: Mapping[str, float] = getattr(parity, key) if parity else {}
        found.append({name: told.get(name, told.get(engine)) for name, engine in engines.items()})
    return found[0], found[1]


def _problems(what: str, found: Mapping[str, float | None], limit: float, dtype: str) -> list[str]:
    problems = []
    for name, value in found.items():
        if value is None:
            problems.append(f"{name}: {what} were not compared with the reference's")
        # Not "value > limit", which a NaN would pass.
        elif not value <= limit:
            problems.append(f"{name}: {what} differ by {value:.2g}, limit {limit:g} in {dtype}")
    return problems


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
