"""The records of a run's epochs and its scores, and the files that hold them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hopper.cluster.traffic import Cause
from hopper.errors import RequestError
from hopper.files.whole_files import read_non_finite
from hopper.timing.run_log import Stage

EPOCHS_FILE = "epochs.jsonl"
SUMMARY_FILE = "summary.json"
SPANS_FOLDER = "spans"
GRADIENTS_FOLDER = "gradients"
ROW_KINDS: Final = ("local", "remote", "remote_unique", "cached")


@dataclass(kw_only=True)
class TrialRecord:
    """One epoch of one of several trials. What it cost is only in the run's own record.

    Attributes
    ----------
    epoch: number of the epoch, from 0.
    loss: mean loss over the epoch's iterations whose loss is finite.
    iterations: number of iterations of the epoch.
    iteration_losses: loss of every iteration.
    val: validation score.
    left_out: number of updates that were left out, since a loss or gradient was not finite.
    gradient_norms: norm of every measured iteration's gradient before clipping; empty unless
        ``train.gradient_norms`` or ``train.clip_norm`` is set.
    """

    epoch: int
    loss: float
    iterations: int
    iteration_losses: list[float]
    val: float | None = None
    left_out: int = 0
    gradient_norms: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class EpochRecord(TrialRecord):
    """One epoch over all ranks. Of several models, ``val`` is the best one's, and norms are means.

    Attributes
    ----------
    seconds: training time of the slowest rank, without evaluation.
    measured_iterations: number of iterations that the measurements cover; fewer than all if the run
        was resumed within the epoch.
    bytes: bytes by cause, summed over ranks.
    rows: input rows by kind (:data:`ROW_KINDS`), summed over ranks.
    lookups: by node type or table of learnable rows, [hits, misses] in caches, summed over ranks.
    stage_seconds: seconds by stage, mean over ranks.
    train: score of the training nodes with the same model, if ``train.score_training`` is set.
    scores: validation scores by metric. The metric that selects the best model comes first.
    evaluation_seconds: time of the evaluation.
    evaluation_bytes: bytes of the evaluation, all causes, summed over ranks.
    engine, ranks: the engine and the number of ranks.
    cpu_seconds: by rank, processor seconds of all threads during training.
    nic_bytes: by server, bytes that its network interface sent; None if none is read.
    sent_bytes: bytes sent during training, all causes, summed over ranks. Some are for later
        epochs.
    iteration_seconds: time of every measured iteration on its slowest rank.
    roots: number of roots that the measured iterations trained.
    """

    seconds: float
    measured_iterations: int
    bytes: dict[Cause, int]
    rows: dict[str, int]
    lookups: dict[str, list[int]]
    stage_seconds: dict[Stage, float]
    train: float | None = None
    scores: dict[str, float] = field(default_factory=dict)
    evaluation_seconds: float = 0.0
    evaluation_bytes: int = 0
    engine: str = ""
    ranks: int = 0
    cpu_seconds: list[float] = field(default_factory=list)
    nic_bytes: list[int] | None = None
    sent_bytes: int = 0
    iteration_seconds: list[float] = field(default_factory=list)
    roots: int = 0


def finite_mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are finite; NaN if none is."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def spans_file(run_dir: Path, rank: int) -> Path:
    """Return the file of a rank's spans, each a line of JSON."""
    return run_dir / SPANS_FOLDER / f"rank-{rank}.jsonl"


def learned_rows_file(run_dir: Path, rank: int) -> Path:
    """Return the file of the learnable rows that a rank owned at the end of a run."""
    return run_dir / f"learnable-rank-{rank}.safetensors"


def split_scores(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the scores of a summary, of a trial in it, or of a run in results.json, by split and
    metric, the one that selects the best model first. A split that was not scored has no metric."""
    return {split: read_non_finite(scores) for split, scores in summary["scores"].items()}


def main_score(summary: Mapping[str, Any], split: str) -> float | None:
    """Return the score of a split by the metric that selects the best model; None where there is
    none."""
    return next(iter(split_scores(summary).get(split, {}).values()), None)


def refuse_finished(run_dir: Path) -> None:
    """Refuse to train into the folder of a finished run."""
    if (run_dir / SUMMARY_FILE).exists():
        raise RequestError(
            f"train.run_dir: {run_dir} holds a finished run; name another, or resume it"
        )


def best_first(scores: Mapping[int, float | None], higher_is_better: bool) -> list[int]:
    """Return the numbers of models by score, the best first, then by number. Models without a
    score, or with NaN, come last."""

    def key(model: int) -> float:
        score = scores[model]
        if score is None or math.isnan(score):
            return math.inf
        return -score if higher_is_better else score

    return sorted(scores, key=lambda model: (key(model), model))
