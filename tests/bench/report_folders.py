"""Folders as `hopper bench`, `hopper train` and `hopper sweep` leave them, made by hand."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hopper.bench.contender import Contender

from .conftest import make_results, make_run

Line = dict[str, Any]
SOUND = {"model_centric": 2e-7, "hop": 3e-7}


def span(stage: str, start: float, seconds: float, iteration: int = 0, **fields: Any) -> Line:
    return {"epoch": 0, "iteration": iteration, "span": stage, "start": start,
            "seconds": seconds} | fields  # fmt: skip


def opening_line(monotonic: float, clock: str = "machine") -> Line:
    return {"event": "opened", "start": 0.0, "unix": 1e9, "monotonic": monotonic, "clock": clock}


def write_lines(path: Path, lines: Iterable[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_spans(folder: Path, *ranks: Iterable[Any]) -> Path:
    """Write the lines of every rank's spans."""
    for rank, lines in enumerate(ranks):
        write_lines(folder / f"rank-{rank}.jsonl", lines)
    return folder


def ring_spans(rank: int, iteration: int) -> list[Line]:
    """Return spans in which two ranks pass on two models once, and rank 1 has to wait."""
    first, second = rank, 1 - rank
    at, short = 0.4 * iteration, 0.02 * rank
    work = {"own": 7, "destinations": 5, "edges": 1000 * (1 + 2 * rank), "sent": 3, "received": 3}
    return [
        span("sample", at, 0.02, iteration, model=first, step=0, layers=[work, work]),
        span("compute", at + 0.02, 0.08 - short, iteration, model=first, step=0, roots=3),
        span("wait", at + 0.10 - short, 0.02 + short, iteration, step=1, operation="migrate"),
        span("migrate", at + 0.12, 0.02, iteration, step=1, models=[first], bytes=640),
        span("gather", at + 0.01, 0.02, iteration + 1, thread="read"),
        span("compute", at + 0.15, 0.08, iteration, model=second, step=1, roots=3),
        span("wait", at + 0.23, 0.01, iteration, operation="sync"),
        span("sync", at + 0.24, 0.02, iteration),
    ]


def write_run(folder: Path, entry: Mapping[str, Any], losses: list[float], **changes: Any) -> Path:
    """Write a run's summary with changes to it, and the spans of two ranks over four iterations."""
    epochs = [
        epoch | {"iteration_losses": losses, "val": 0.5 + 0.1 * index}
        for index, epoch in enumerate(entry["epochs"])
    ]
    summary = {
        "engine": entry["engine"], "exact": True, "ranks": 2, "metric": "accuracy",
        "scores": {"val": {"accuracy": 0.6}, "test": {"accuracy": 0.55}},
        "baselines": {"val": {"accuracy": 0.03}, "test": {"accuracy": 0.029}},
        "best_epoch": 1, "peak_rss_mib": [120.0, 130.0], "epochs": epochs,
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(summary | changes))
    ranks = [[line for number in range(4) for line in ring_spans(rank, number)] for rank in (0, 1)]
    write_spans(folder / "spans", *([opening_line(50.0), *lines] for lines in ranks))
    return folder


def write_sweep(folder: Path) -> Path:
    """Write a sweep's folder with two trials, of which the second is the better one."""
    hidden = {"model.hidden": 8}, {"model.hidden": 16, "train.learning_rate": 0.1}
    trials = [
        {"trial": number, "overrides": overrides, "best_epoch": 1,
         "scores": {"val": {"accuracy": 0.4 + 0.2 * number}, "test": {"accuracy": 0.5}}}
        for number, overrides in enumerate(hidden)
    ]  # fmt: skip
    entry = make_run("hop", 0, [9.0, 2.0])
    write_run(folder, entry, [2.0], trials=trials, ranking=[1, 0])
    (folder / "trial-1").mkdir()
    own_epochs = [{"loss": 1.5, "iterations": 4, "val": 0.6}]
    trial = {"engine": "hop", "metric": "accuracy", **trials[1], "epochs": own_epochs}
    (folder / "trial-1" / "summary.json").write_text(json.dumps(trial))
    return folder


def write_ab(folder: Path, results: Mapping[str, Any], runs: bool = True) -> Path:
    """Write an A/B's folder around its results."""
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(results))
    for entry in results["runs"] if runs else ():
        if entry["round"] == 0:
            label = entry.get("label", entry["engine"])
            name = Contender(label, entry["engine"], ()).folder
            write_run(folder / "runs" / f"{name}-round-0", entry, [3.0, 2.5, 2.0, 1.5])
    return folder


def sound_results() -> dict[str, Any]:
    """Return three rounds of two engines with equal gradients, of which hop is faster."""
    runs = []
    for index in range(3):
        runs.append(make_run("model_centric", index, [9.0, 4.0], feature_bytes=40_000_000))
        runs.append(make_run("hop", index, [9.0, 2.0 * (1 + 0.01 * index)], 8_000_000, 900))
    return make_results(runs, SOUND)
