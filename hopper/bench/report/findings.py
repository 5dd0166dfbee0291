"""The claims of a report: figures per engine, speed-ups or why there are none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopper.bench.parity import LIMITS, judge
from hopper.bench.report.source import Parity, Run, Source
from hopper.bench.statistics import BASELINES, Figures, fewer_bytes, figures, speed_up
from hopper.engines import ENGINE_CLASSES
from hopper.paired_ratio import Ratio


@dataclass(frozen=True)
class Findings:
    """The findings that the files of a source support.

    Attributes
    ----------
    problems: why no speed-up may be reported. Empty if all exact engines computed the same.
    wrong_gradients: by name, what is wrong with a gradient that does not pass.
    rounding: names that round on purpose. Their gradients only have to be near.
    wrong_losses: names whose losses do not pass.
    in_float64, losses_in_float64: by name, the results in float64 where float32 could not judge.
    spread: by name, how far one process in float32 differs between orders of summation.
    ratios: by baseline and name, the speed-up. The baseline itself has none.
    byte_ratios: the same for bytes. None if one of the two sends none.
    unpaired: sentences about comparisons that cannot be made.
    """

    figures: Mapping[str, Figures]
    approximate: frozenset[str]
    gradients: Mapping[str, float | None]
    wrong_gradients: Mapping[str, str]
    rounding: frozenset[str]
    in_float64: Mapping[str, float]
    spread: Mapping[str, float]
    wrong_losses: frozenset[str]
    losses_in_float64: Mapping[str, float]
    losses: Mapping[str, float | None]
    gradient_limit: float
    loss_limit: float
    problems: tuple[str, ...]
    baselines: tuple[str, ...]
    ratios: Mapping[str, Mapping[str, Ratio]]
    byte_ratios: Mapping[str, Mapping[str, Ratio | None]]
    unpaired: tuple[str, ...]

    def ratio(self, name: str, baseline: str) -> Ratio | None:
        """Return the speed-up of a name over a baseline. None if it may not be reported."""
        return self.ratios.get(baseline, {}).get(name)


def find(source: Source) -> Findings:
    """Judge a source as the A/B runner does: parity first, then times."""
    entries = [_entry(run) for run in source.results.runs]
    approximate = frozenset(run.name for run in source.results.runs if not _is_exact(run))
    dtype = _find_dtype(source)
    parity = source.results.parity or Parity()
    gradients, losses = (
        _by_run_name(source, by_engine)
        for by_engine in (
            parity.max_relative_gradient_difference,
            parity.max_relative_loss_difference,
        )
    )
    rounding = frozenset(parity.not_judged)
    in_float64 = {name: check.difference for name, check in parity.in_float64.items()}
    wrong_gradients: dict[str, str] = {}
    wrong_losses: dict[str, str] = {}
    for name in source.names:
        gradient, loss, is_judged = gradients[name], losses[name], name not in rounding
        if gradient is not None:
            words = judge("gradients", gradient, dtype, in_float64.get(name), is_judged)
            wrong_gradients |= {name: words} if words else {}
        if loss is not None:
            again = parity.losses_in_float64.get(name)
            words = judge("losses", loss, dtype, again, is_judged)
            wrong_losses |= {name: words} if words else {}
    problems = []
    if source.kind == "ab":
        problems = _find_problems(
            source.names, approximate, gradients, losses, wrong_gradients, wrong_losses
        )
    ratios, byte_ratios, unpaired = _ratios(source, entries) if not problems else ({}, {}, [])
    return Findings(
        figures={name: figures(entries, name) for name in source.names},
        approximate=approximate,
        gradients=gradients,
        wrong_gradients=wrong_gradients,
        rounding=rounding,
        losses=losses,
        in_float64=in_float64,
        spread=parity.spread,
        wrong_losses=frozenset(wrong_losses),
        losses_in_float64=parity.losses_in_float64,
        gradient_limit=LIMITS["gradients"][dtype],
        loss_limit=LIMITS["losses"][dtype],
        problems=tuple(problems),
        baselines=tuple(name for name in BASELINES if name in source.names),
        ratios=ratios,
        byte_ratios=byte_ratios,
        unpaired=tuple(unpaired),
    )


def _entry(run: Run) -> dict[str, Any]:
    """Turn a run into an entry that :mod:`hopper.bench.statistics` reads, under its name."""
    return run.model_dump() | {"engine": run.name, "label": run.name}


def _is_exact(run: Run) -> bool:
    if run.exact is not None:
        return run.exact
    engine = ENGINE_CLASSES.get(run.engine)
    return engine is None or engine.exact


def _find_dtype(source: Source) -> str:
    """Return the dtype whose limits apply: the configured one, or float32 if it has no limits."""
    train = source.results.config.get("train", {})
    dtype = str(train.get("dtype", "float32")) if isinstance(train, Mapping) else "float32"
    return dtype if dtype in LIMITS["gradients"] else "float32"


def _find_problems(
    names: Sequence[str],
    approximate: Collection[str],
    gradients: Mapping[str, float | None],
    losses: Mapping[str, float | None],
    wrong_gradients: Mapping[str, str],
    wrong_losses: Mapping[str, str],
) -> list[str]:
    """List, name by name, the reasons why an A/B may not report a speed-up."""
    problems = []
    for name in names:
        wrong = (wrong_gradients.get(name), wrong_losses.get(name))
        problems += [f"{name}: {words}" for words in wrong if words]
        # An approximate engine may be exact on its own batches, so its check is optional.
        if name not in approximate:
            problems += [
                f"{name}: {what} were not compared with the reference's"
                for what, value in (("gradients", gradients[name]), ("losses", losses[name]))
                if value is None
            ]
    return problems


def _by_run_name(source: Source, by_engine: Mapping[str, float]) -> dict[str, float | None]:
    engines = {run.name: run.engine for run in source.results.runs}
    return {name: by_engine.get(name, by_engine.get(engine)) for name, engine in engines.items()}


def _ratios(
    source: Source, entries: list[dict[str, Any]]
) -> tuple[dict[str, dict[str, Ratio]], dict[str, dict[str, Ratio | None]], list[str]]:
    ratios: dict[str, dict[str, Ratio]] = {}
    byte_ratios: dict[str, dict[str, Ratio | None]] = {}
    unpaired = []
    for baseline in (name for name in BASELINES if name in source.names):
        ratios[baseline], byte_ratios[baseline] = {}, {}
        for name in source.names:
            if name == baseline:
                continue
            try:
                ratios[baseline][name] = speed_up(entries, name, baseline)
                byte_ratios[baseline][name] = fewer_bytes(entries, name, baseline)
            except ValueError as error:
                unpaired.append(f"{name} against {baseline}: {error}")
    return ratios, byte_ratios, unpaired
