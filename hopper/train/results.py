"""The records of a run's epochs, combined from all ranks, and the files that hold them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from hopper.cluster import Cluster
from hopper.errors import RequestError
from hopper.features import RowCounts
from hopper.features.cached import Lookups
from hopper.run_log import STAGES, Stage
from hopper.traffic import CAUSES, Cause
from hopper.whole_files import read_non_finite, to_json, write_text

EPOCHS_FILE = "epochs.jsonl"
SUMMARY_FILE = "summary.json"
SPANS_FOLDER = "spans"
ROW_KINDS: Final = ("local", "remote", "remote_unique", "cached")


@dataclass
class EpochRecord:
    """One epoch over all ranks.

    Attributes
    ----------
    epoch: number of the epoch, from 0.
    seconds: training time of the slowest rank, without evaluation.
    loss: mean loss over the epoch's iterations whose loss is finite.
    iterations: number of iterations of the epoch.
    measured_iterations: number of iterations that the measurements cover; fewer than all if the run
        was resumed within the epoch.
    iteration_losses: loss of every iteration.
    bytes: bytes by cause, summed over ranks.
    rows: input rows by kind (:data:`ROW_KINDS`), summed over ranks.
    lookups: by node type or table of learnable rows, [hits, misses] in caches, summed over ranks.
    stage_seconds: seconds by stage, mean over ranks.
    val: validation score; of several models, that of the best.
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
    gradient_norms: norm of every measured iteration's gradient before clipping; empty unless
        ``train.gradient_norms`` or ``train.clip_norm`` is set. Of several models, the mean.
    left_out: number of updates that were left out, since a loss or gradient was not finite.
    """

    epoch: int
    seconds: float
    loss: float
    iterations: int
    measured_iterations: int
    iteration_losses: list[float]
    bytes: dict[Cause, int]
    rows: dict[str, int]
    lookups: dict[str, list[int]]
    stage_seconds: dict[Stage, float]
    val: float | None = None
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
    gradient_norms: list[float] = field(default_factory=list)
    left_out: int = 0


def agree_on_epoch(
    cluster: Cluster,
    epoch: int,
    seconds: float,
    cpu_seconds: float,
    losses: list[float],
    iteration_seconds: list[float],
    rows: RowCounts,
    lookups: Mapping[str, Lookups],
    stage_seconds: dict[Stage, float],
    sent_bytes: int,
    nic_bytes: int | None = None,
) -> EpochRecord:
    """Combine all ranks' measurements into one record, and reset the traffic counters.

    Every rank must call it with its own measurements.
    """
    sent = cluster.traffic.take()
    lookup_counts = [count for hits_and_misses in lookups.values() for count in hits_and_misses]
    mine = torch.tensor(
        [
            *iteration_seconds,
            seconds,
            *(float(sent[cause]) for cause in CAUSES),
            *(float(getattr(rows, kind)) for kind in ROW_KINDS),
            *(stage_seconds[stage] for stage in STAGES),
            *map(float, lookup_counts),
            float(sent_bytes),
            cpu_seconds,
            -1.0 if nic_bytes is None else float(nic_bytes),
        ],
        dtype=torch.float64,
    )
    everyone = cluster.all_gather(mine, "control", f"adding up epoch {epoch}")
    measured = len(iteration_seconds)
    by_iteration, everyone = everyone[:, :measured], everyone[:, measured:]
    sums, means = everyone.sum(0), everyone.mean(0)
    first_ranks = everyone[:: cluster.ranks_per_server]
    sent_by_server = [int(value) for value in first_ranks[:, -1]]
    first_row, first_stage = 1 + len(CAUSES), 1 + len(CAUSES) + len(ROW_KINDS)
    counts = [int(value) for value in sums[first_stage + len(STAGES) : -3]]
    return EpochRecord(
        epoch=epoch,
        seconds=float(everyone[:, 0].max()),
        loss=finite_mean(losses),
        iterations=len(losses),
        measured_iterations=measured,
        iteration_losses=losses,
        bytes={cause: int(sums[1 + i]) for i, cause in enumerate(CAUSES)},
        rows={kind: int(sums[first_row + i]) for i, kind in enumerate(ROW_KINDS)},
        lookups={name: counts[2 * i : 2 * i + 2] for i, name in enumerate(lookups)},
        stage_seconds={stage: float(means[first_stage + i]) for i, stage in enumerate(STAGES)},
        cpu_seconds=everyone[:, -2].tolist(),
        nic_bytes=None if min(sent_by_server) < 0 else sent_by_server,
        sent_bytes=int(sums[-3]),
        iteration_seconds=by_iteration.amax(0).tolist(),
    )


def peak_rss_mib(cluster: Cluster) -> list[float]:
    """Return the peak resident memory in MiB by rank; every rank must call it."""
    mine = torch.tensor([_peak_rss_kib() / 1024], dtype=torch.float64)
    by_rank = cluster.all_gather(mine, "control", "adding up memory")
    return [round(value, 1) for value in by_rank[:, 0].tolist()]


@dataclass
class TrialRecord:
    """One epoch of one of several trials.

    What the epoch cost is known only for all trials together, and is in the run's own record.

    Attributes
    ----------
    epoch, loss, iterations, iteration_losses, val, left_out, gradient_norms: the fields of
        :class:`EpochRecord`, for this trial.
    """

    epoch: int
    loss: float
    iterations: int
    iteration_losses: list[float]
    val: float | None = None
    left_out: int = 0
    gradient_norms: list[float] = field(default_factory=list)


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


def append_epoch(run_dir: Path, record: EpochRecord | TrialRecord) -> None:
    """Append an epoch's line to the run's file of epochs."""
    with (run_dir / EPOCHS_FILE).open("a") as file:
        file.write(to_json(asdict(record)) + "\n")


def keep_epochs_before(run_dir: Path, epoch: int) -> list[dict[str, Any]]:
    """Remove the lines of ``epoch`` and later, which a resumed run writes again.

    A last line that a crash left half written belongs to such an epoch and is removed too.

    Returns
    -------
    The records that remain.
    """
    path = run_dir / EPOCHS_FILE
    records: list[dict[str, Any]] = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break
        if record["epoch"] < epoch:
            records.append(record)
    write_text(path, "".join(to_json(record) + "\n" for record in records))
    return records


def read_summary(run_dir: Path) -> dict[str, Any]:
    """Read the summary of a finished run."""
    summary: dict[str, Any] = json.loads((run_dir / SUMMARY_FILE).read_text())
    return summary


def split_scores(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the scores of a summary, of a trial in it, or of a run in results.json.

    A summary of an older version has one score a split, under "accuracy" whatever its metric is.

    Returns
    -------
    By split, "val" and "test", and by metric, the one that selects the best model first. A split
    that was not scored has no metric.
    """
    if "scores" in summary:
        return {split: read_non_finite(scores) for split, scores in summary["scores"].items()}
    metric, old = str(summary.get("metric", "accuracy")), summary.get("accuracy", {})
    return {split: {} if score is None else {metric: score} for split, score in old.items()}


def main_score(summary: Mapping[str, Any], split: str) -> float | None:
    """Return the score of a split by the metric that selects the best model; None where there is
    none."""
    return next(iter(split_scores(summary).get(split, {}).values()), None)


def refuse_finished(run_dir: Path) -> None:
    """Refuse to train into the folder of a finished run.

    Raises
    ------
    RequestError: the folder has a summary.
    """
    if (run_dir / SUMMARY_FILE).exists():
        raise RequestError(
            f"train.run_dir: {run_dir} holds a finished run; name another, or resume it"
        )


def _peak_rss_kib() -> int:
    """Return the peak resident memory of this process, from /proc.

    getrusage would include the process that this one was forked from.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0
