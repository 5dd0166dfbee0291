"""Figures of an A/B: the measurements of a run, and ratios over paired rounds.

The functions work on the ``runs`` of results.json, so a table can be made from the file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from hopper.timing.paired_ratio import Ratio, paired_ratio

Run = Mapping[str, Any]


@dataclass(frozen=True)
class Figures:
    """The measurements of one engine, per epoch.

    Attributes
    ----------
    seconds: median over rounds of a run's mean epoch.
    bytes, rows, stage_seconds: means over all measured epochs.
    """

    seconds: float
    bytes: dict[str, float]
    rows: dict[str, float]
    stage_seconds: dict[str, float]


def label_of(run: Run) -> str:
    """Return the label of a run: its engine and options."""
    return str(run.get("label", run["engine"]))


def engines_of(runs: Iterable[Run]) -> list[str]:
    """Return the labels of all runs, in order of their first run."""
    return list(dict.fromkeys(map(label_of, runs)))


def measured_epochs(run: Run) -> list[Mapping[str, Any]]:
    """Return a run's epochs without the first and, if any others remain, without the last.

    The first epoch warms caches and compilers. The last one ends without work ahead for a next one.
    """
    epochs: list[Mapping[str, Any]] = list(run["epochs"])
    return epochs[1:-1] or epochs[1:] or epochs


def sent_bytes(epoch: Mapping[str, Any]) -> float:
    """Return the bytes that were sent during an epoch, for all causes.

    Older results have only the bytes that were sent for the epoch. Their runs did no work ahead, so
    both are equal.
    """
    return float(epoch.get("sent_bytes") or sum(epoch["bytes"].values()))


def epoch_seconds(run: Run) -> float:
    """Return the seconds of all measured epochs of a run together."""
    return sum(float(epoch["seconds"]) for epoch in measured_epochs(run))


def epoch_bytes(run: Run) -> float:
    """Return the bytes of all measured epochs together, of all causes."""
    return sum(float(sum(epoch["bytes"].values())) for epoch in measured_epochs(run))


def speed_up(
    runs: Iterable[Run],
    engine: str,
    baseline: str,
    measure: Callable[[Run], float] = epoch_seconds,
) -> Ratio:
    """Return the ratio of the baseline's seconds, or of another measure, to an engine's."""
    by_round: dict[str, dict[int, float]] = {engine: {}, baseline: {}}
    for run in runs:
        if label_of(run) in by_round:
            by_round[label_of(run)][run["round"]] = measure(run)
    ours, theirs = by_round[engine], by_round[baseline]
    if ours.keys() != theirs.keys():
        raise ValueError(f"{engine} and {baseline} did not run in the same rounds")
    rounds = sorted(ours)
    return paired_ratio([theirs[index] for index in rounds], [ours[index] for index in rounds])


def fewer_bytes(runs: Sequence[Run], engine: str, baseline: str) -> Ratio | None:
    """Return the ratio of the baseline's bytes to an engine's; None if one sends nothing."""
    if not all(epoch_bytes(run) for run in runs if label_of(run) in (engine, baseline)):
        return None
    return speed_up(runs, engine, baseline, epoch_bytes)


def figures(runs: Iterable[Run], engine: str) -> Figures:
    """Return the measurements of an engine's runs, per epoch."""
    by_run = [measured_epochs(run) for run in runs if label_of(run) == engine]
    epochs = [epoch for run in by_run for epoch in run]
    if not epochs:
        raise ValueError(f"no epoch of {engine} was measured")
    means = (
        {key: fmean(float(epoch[group][key]) for epoch in epochs) for key in epochs[0][group]}
        for group in ("bytes", "rows", "stage_seconds")
    )
    return Figures(
        median(fmean(float(epoch["seconds"]) for epoch in run) for run in by_run), *means
    )
