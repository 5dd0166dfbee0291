"""The claims of a report: figures per engine, whether it computed the right gradient, speed-ups."""

from __future__ import annotations

from typing import NamedTuple

from hopper.bench.parity import LIMITS, judge
from hopper.bench.report.source import Source
from hopper.bench.statistics import Figures, fewer_bytes, figures, speed_up
from hopper.bench.verdict import most_telling, tell_bytes, tell_speed
from hopper.config.engines import COMPARED_WITH
from hopper.timing.paired_ratio import Ratio


class Check(NamedTuple):
    """A largest relative difference to the reference (None = not compared), what float64 says where
    float32 cannot decide, and what is wrong ("" = nothing)."""

    value: float | None
    in_float64: float | None
    problem: str


class Findings(NamedTuple):
    """What the files of a source support: by name of run figures, and checks of "gradients" and
    "losses"; why no speed-up may be told; speed-ups by baseline and name, and sentences on them."""

    dtype: str
    figures: dict[str, Figures]
    checks: dict[str, dict[str, Check]]
    problems: list[str]
    ratios: dict[str, dict[str, Ratio]]
    verdicts: list[str]


def find(source: Source) -> Findings:
    """Judge a source as the A/B runner does: parity first, then times."""
    train = source.results.config.get("train", {})
    dtype = str(train.get("dtype", "")) if isinstance(train, dict) else ""
    dtype = dtype if dtype in LIMITS["gradients"] else "float32"
    checks = {name: _check(source, name, dtype) for name in source.by_name}
    both = ((name, check) for name, of_name in checks.items() for check in of_name.values())
    problems = [f"{name}: {check.problem}" for name, check in both if check.problem]
    runs = source.plain_runs
    by_name = {name: figures(runs, name) for name in source.by_name}
    findings = Findings(dtype, by_name, checks, problems, {}, [])
    for baseline in (b for b in COMPARED_WITH if b in by_name and not problems):
        for name in (name for name in by_name if name != baseline):
            try:
                ratio = speed_up(runs, name, baseline)
                of_bytes = fewer_bytes(runs, name, baseline)
            except ValueError as error:
                findings.verdicts.append(f"{name} against {baseline}: {error}.")
                continue
            findings.ratios.setdefault(baseline, {})[name] = ratio
            words = f"{tell_speed(name, baseline, ratio)}; {tell_bytes(name, baseline, of_bytes)}."
            findings.verdicts.append(f"N{words[1:]}" if words.startswith("no ") else words)
    return findings


def headline(source: Source, findings: Findings) -> str:
    """Say in a few words what an A/B shows of the exact engine that tells the most."""
    if findings.problems:
        return "No speed-up can be told"
    baseline, ratios = next(iter(findings.ratios.items()), ("", {}))
    exact = {name: ratio for name, ratio in ratios.items() if source.by_name[name][0].exact}
    if not exact:
        return " and ".join(source.by_name)
    name = most_telling(exact)
    if not exact[name].is_shown:
        return f"No difference shown between {name} and {baseline}"
    return tell_speed(name, baseline, exact[name])


def _check(source: Source, name: str, dtype: str) -> dict[str, Check]:
    parity, run = source.results.parity, source.by_name[name][0]
    in_float64 = parity.in_float64.get(name, {}).get("difference")
    measures = {
        "gradients": (parity.max_relative_gradient_difference, in_float64),
        "losses": (parity.max_relative_loss_difference, parity.losses_in_float64.get(name)),
    }
    checks = {}
    for what, (by_name, again) in measures.items():
        value, problem = by_name.get(name, by_name.get(run.engine)), ""
        if value is not None:
            problem = judge(what, value, dtype, again, name not in parity.not_judged)
        elif run.exact and source.summary is None:
            # An approximate engine may be exact on its own batches, so its check is optional.
            problem = f"{what} were not compared with the reference's"
        checks[what] = Check(value, again, problem)
    return checks
