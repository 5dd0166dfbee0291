"""What a run of several trials writes: a folder per trial, and a summary of all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hopper.config import Config
from hopper.train.results import SUMMARY_FILE, write_text

CONFIG_FILE = "config.json"


def trial_folder(run_dir: Path, trial: int) -> Path:
    """Where a trial's files are."""
    return run_dir / f"trial-{trial}"


def write_configs(run_dir: Path, configs: Sequence[Config]) -> None:
    """Write, for each trial, the configuration that trains it alone."""
    for trial, config in enumerate(configs):
        folder = trial_folder(run_dir, trial)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / CONFIG_FILE, config.model_dump_json(indent=1))


def best_first(scores: Mapping[int, float | None], higher_is_better: bool) -> list[int]:
    """Trials by score; equal ones in order of trial, those without a score last."""

    def key(trial: int) -> float:
        score = scores[trial]
        if score is None or math.isnan(score):
            return math.inf
        return -score if higher_is_better else score

    return sorted(scores, key=lambda trial: (key(trial), trial))


def write_summaries(
    run_dir: Path,
    facts: Mapping[str, Any],
    trials: Sequence[Mapping[str, Any]],
    trial_epochs: Sequence[list[dict[str, Any]]],
    epochs: list[dict[str, Any]],
    higher_is_better: bool,
) -> None:
    """Write every trial's summary, and the run's.

    Parameters
    ----------
    facts: what holds for the whole run.
    trials: by trial, its number, overrides, number of parameters, accuracy and best epoch.
    trial_epochs: by trial, its losses and scores.
    epochs: what each epoch cost, for all trials together.
    """
    for trial, own_epochs in zip(trials, trial_epochs, strict=True):
        summary = {**facts, **trial, "epochs": own_epochs}
        path = trial_folder(run_dir, trial["trial"]) / SUMMARY_FILE
        write_text(path, json.dumps(summary, indent=1))
    scores = {trial["trial"]: trial["accuracy"]["val"] for trial in trials}
    ranking = best_first(scores, higher_is_better)
    best = trials[ranking[0]]
    summary = {
        **facts,
        "accuracy": best["accuracy"],
        "best_epoch": best["best_epoch"],
        "ranking": ranking,
        "trials": list(trials),
        "epochs": epochs,
    }
    write_text(run_dir / SUMMARY_FILE, json.dumps(summary, indent=1))
