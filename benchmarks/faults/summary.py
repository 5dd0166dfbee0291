"""Summarises trials by case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from benchmarks.faults.cases import CASES
from benchmarks.faults.matrix import ERROR, RECOVERED, STAGES, WRONG, Trial, Undisturbed
from benchmarks.faults.running import Limits


def summarise(
    trials: Sequence[Trial], asked: int, undisturbed: Undisturbed, limits: Limits
) -> dict[str, Any]:
    """Return the matrix's part of the result: by case, every trial, and ``wrong``, a line each."""
    trials = sorted(trials, key=lambda trial: trial.number)
    times = {name: round(value, 2) for name, value in asdict(undisturbed).items()
             if name != "losses"}  # fmt: skip
    return {
        "asked": asked,
        "runs": len(trials),
        "limits": asdict(limits),
        "undisturbed_seconds": times,
        "cases": [
            _summarise_case(name, [trial for trial in trials if trial.case == name])
            for name in CASES
            if any(trial.case == name for trial in trials)
        ],
        "trials": [
            [trial.number, trial.case, trial.found, trial.after_epoch, round(trial.share, 3),
             trial.place, trial.outcome, round(trial.seconds, 2), trial.writing, trial.resumed,
             trial.last_line if trial.outcome == ERROR else ""]
            for trial in trials
        ],
        "wrong": [
            f"run {trial.number}: {trial.case} ({trial.place}), {trial.found}, after "
            f"{trial.after_epoch} epochs and {trial.share:.2f}: {trial.why}"
            for trial in trials
            if trial.outcome == WRONG
        ],
    }  # fmt: skip


def _summarise_case(name: str, trials: Sequence[Trial]) -> dict[str, Any]:
    counts = {
        key: sum(trial.outcome == outcome for trial in trials)
        for key, outcome in (("recovered", RECOVERED), ("errors", ERROR), ("wrong", WRONG))
    }
    seconds = [trial.seconds for trial in trials if trial.outcome != WRONG]
    return {
        "case": name,
        "right": CASES[name].right,
        "runs": len(trials),
        **counts,
        "resumed": sum(trial.resumed for trial in trials),
        "stages": {stage: sum(trial.found == stage for trial in trials) for stage in STAGES},
        "while_writing": sum(trial.writing for trial in trials),
        "seconds": {
            "median": round(median(seconds), 2), "longest": round(max(seconds), 2),
        } if seconds else None,
    }  # fmt: skip
