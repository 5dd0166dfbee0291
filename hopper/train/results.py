"""What a run reports, per epoch and at its end, agreed by all ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
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
from hopper.whole_files import write_text

EPOCHS_FILE = "epochs.jsonl"
SUMMARY_FILE = "summary.json"
SPANS_FOLDER = "spans"
ROW_KINDS: Final = ("local", "remote", "remote_unique", "cached")


@dataclass
class EpochRecord:
    """One epoch over all ranks.

    seconds: the slowest rank's training time, evaluation left out. loss: mean over the epoch's
    iterations. measured_iterations: those that seconds, bytes, rows and stage_seconds cover, fewer
    than all where the run was resumed within the epoch. iteration_seconds: theirs, of the slowest
    rank in each: what decisions go by. bytes, rows: summed over ranks. lookups: by
    node type, or table of learnable rows, [hits, misses] of rows that were looked for in a cache,
    summed over ranks.
    val: the validation score; of several models, that of the best. train: the training nodes' score
    of the same model, where ``train.score_training`` asks for it. scores: those of validation by
    metric, the one that selects first.
    stage_seconds: mean over ranks. evaluation_bytes: of all causes, summed over ranks.
    decisions: what the engine decided for the epoch, such as merging's number of steps; engine and
    ranks say for whom that holds. cpu_seconds: processor seconds of every rank, of all of its
    threads, in the same time. nic_bytes: what each server's network interface sent, in order of
    server; None where none is read. sent_bytes: of all causes, summed over ranks, that were sent in
    the same time, some of them for epochs to come. roots: that the measured iterations trained.
    gradient_norms: of theirs, before clipping; none where nobody asked.
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
    decisions: dict[str, Any] = field(default_factory=dict)
    cpu_seconds: list[float] = field(default_factory=list)
    nic_bytes: list[int] | None = None
    sent_bytes: int = 0
    iteration_seconds: list[float] = field(default_factory=list)
    roots: int = 0
    gradient_norms: list[float] = field(default_factory=list)


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
    """Combine every rank's counters into one record; takes the rank's traffic counters."""
    sent = cluster.traffic.take()
    found = [count for each in lookups.values() for count in each]
    mine = torch.tensor(
        [
            *iteration_seconds,
            seconds,
            *(float(sent[cause]) for cause in CAUSES),
            *(float(getattr(rows, kind)) for kind in ROW_KINDS),
            *(stage_seconds[stage] for stage in STAGES),
            *map(float, found),
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
        loss=sum(losses) / len(losses),
        iterations=len(losses),
        measured_iterations=measured,
        iteration_losses=losses,
        bytes={cause: int(sums[1 + i]) for i, cause in enumerate(CAUSES)},
        rows={kind: int(sums[first_row + i]) for i, kind in enumerate(ROW_KINDS)},
        lookups={each: counts[2 * i : 2 * i + 2] for i, each in enumerate(lookups)},
        stage_seconds={stage: float(means[first_stage + i]) for i, stage in enumerate(STAGES)},
        cpu_seconds=everyone[:, -2].tolist(),
        nic_bytes=None if min(sent_by_server) < 0 else sent_by_server,
        sent_bytes=int(sums[-3]),
        iteration_seconds=by_iteration.amax(0).tolist(),
    )


def peak_rss_mib(cluster: Cluster) -> list[float]:
    """Every rank's peak resident memory, MiB."""
    own = _peak_rss_kib() / 1024
    everyone = cluster.all_gather(
        torch.tensor([own], dtype=torch.float64), "control", "adding up memory"
    )
    return [round(value, 1) for value in everyone[:, 0].tolist()]


@dataclass
class TrialRecord:
    """One epoch of one trial, of several that are trained at once.

    What an epoch cost is known for all trials together, and stands in the run's own epochs. loss:
    mean over the epoch's iterations.
    """

    epoch: int
    loss: float
    iterations: int
    iteration_losses: list[float]
    val: float | None = None


def spans_file(run_dir: Path, rank: int) -> Path:
    """What a rank did when, a line of JSON a span."""
    return run_dir / SPANS_FOLDER / f"rank-{rank}.jsonl"


def learned_rows_file(run_dir: Path, rank: int) -> Path:
    """The learnable rows that a rank owns, as a run ended with them."""
    return run_dir / f"learnable-rank-{rank}.safetensors"


def append_epoch(run_dir: Path, record: EpochRecord | TrialRecord) -> None:
    """Add one line to the run's epochs."""
    with (run_dir / EPOCHS_FILE).open("a") as file:
        file.write(json.dumps(asdict(record)) + "\n")


def keep_epochs_before(run_dir: Path, epoch: int) -> list[dict[str, Any]]:
    """Drop the lines of ``epoch`` and later (a resumed run writes them anew); returns the rest.

    A last line that a crash left half written is of such an epoch, and dropped with them.
    """
    path = run_dir / EPOCHS_FILE
    kept: list[dict[str, Any]] = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break
        if record["epoch"] < epoch:
            kept.append(record)
    write_text(path, "".join(json.dumps(record) + "\n" for record in kept))
    return kept


def read_summary(run_dir: Path) -> dict[str, Any]:
    """What a finished run wrote of itself."""
    summary: dict[str, Any] = json.loads((run_dir / SUMMARY_FILE).read_text())
    return summary


def refuse_finished(run_dir: Path) -> None:
    """Refuse to train into the folder of a finished run.

    Raises
    ------
    RequestError: there is a summary.
    """
    if (run_dir / SUMMARY_FILE).exists():
        raise RequestError(
            f"train.run_dir: {run_dir} holds a finished run; name another, or resume it"
        )


def _peak_rss_kib() -> int:
    """From /proc: what getrusage tells includes the process that this one was started from."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    return 0
