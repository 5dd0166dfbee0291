"""The measure "ab": all sides of a cell train in turns, other systems among them; and "gpu"."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from benchmarks.paper.cells import Cell
from benchmarks.paper.experiment import FOUND
from benchmarks.paper.figures import RunsOf, compare_pipelines, values_of
from benchmarks.paper.job import Job, Measured, Value, Values, as_list, gpu_name, graph_size
from hopper.bench.ab import run_ab
from hopper.bench.ab_plan import CONFIG_FILE, Plan, make_plan
from hopper.bench.guest import Guest
from hopper.bench.placement import place_plan
from hopper.bench.statistics import label_of, measured_epochs
from hopper.config import Config
from hopper.errors import RequestError
from hopper.timing.run_log import OPENED
from hopper.train.results import main_score
from hopper.train.tuning import TUNING_FILE

_SCOUT_ITERATIONS: Final = 25
"""of an epoch: two such epochs compare two numbers of time steps"""
_SAMPLE_SECONDS: Final = 0.25
_QUERY: Final = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")

FirstRuns = Mapping[str, Path]
"""by side, the folder of its first timed run"""


def measure_ab(
    job: Job, cell: Cell, read_runs: Callable[[FirstRuns], dict[str, Any]] | None = None
) -> Measured:
    """Compare all sides of a cell.

    Parameters
    ----------
    read_runs: reads more values of the first runs, by side.
    """
    graph = job.materials.parts(cell)
    config = job.config(cell, graph.path)
    folder = job.run_folder(cell)
    labels = list(dict.fromkeys(job.labels(cell).values()))
    plan = make_plan(config, labels, folder / "ab", job.experiment.rounds)
    guests = _join_peers(job, cell, config)
    plan = replace(plan, guests=tuple(guests.values()))
    begin = lambda name: job.begin(f"{cell.name}: {name}")  # noqa: E731
    with place_plan(plan, job.request(cell), job.say) as (plan, emulation):
        is_sought = any(FOUND in label for label in job.experiment.sides.values())
        scout = _look_for_merge(plan, folder, begin) if is_sought else None
        sides = job.contenders(cell, dissolve=scout["dissolve"] if scout else 0)
        plan = replace(plan, contenders=tuple(dict.fromkeys(sides.values())))
        outcome = run_ab(plan, job.say, begin)
        auto = _let_auto_choose(plan, folder, begin) if job.experiment.auto else None
    results = outcome.results
    results["machine"]["emulation"] = emulation
    partition = results["partition"]
    values: Values = {"": {"edge cut": partition["edge_cut"]}}
    for kind, share in partition["locality"].items():
        values[""][f"{kind} locality"] = share
    values[""] = {name: value for name, value in values[""].items() if value is not None}
    runs_of = {
        side: RunsOf(
            contender, config, graph, plan.run_dir(contender, 0),
            [run for run in results["runs"] if label_of(run) == contender.label],
        )
        for side, contender in sides.items()
    }  # fmt: skip
    for side, runs in runs_of.items():
        values[side] = values_of(runs, results)
    for baseline, names in job.experiment.comparisons.items():
        for side in set(names) & runs_of.keys() if baseline in runs_of else ():
            compare_pipelines(values, (side, runs_of[side]), (baseline, runs_of[baseline]))
    # If hosts cannot be built, the plan has no guests.
    trained = {side: guest for side, guest in guests.items() if guest in plan.guests}
    for side, guest in trained.items():
        values[side] = _guest_values([r for r in outcome.guests if r["label"] == guest.label])
    for side, label in job.experiment.sides.items():
        if scout is not None and FOUND in label:
            values[side] |= _scout_values(scout, plan.world)
    if auto is not None:
        values["auto"] = _auto_values(auto, sides, values)
    first_runs = {side: runs.folder for side, runs in runs_of.items()}
    for side, more in read_runs(first_runs).items() if read_runs is not None else ():
        values[side] |= more
    record = {
        **graph_size(graph),
        "labels": {side: contender.label for side, contender in sides.items()},
        "scout": scout,
        "auto": auto,
        "notes": [job.peers[side].note for side in trained],
        "guests": list(outcome.guests),
        "results": results,
    }
    return Measured(values, record, outcome.problems)


def _join_peers(job: Job, cell: Cell, config: Config) -> dict[str, Guest]:
    """Divide the graph for the other systems that can train a cell; by side."""
    guests: dict[str, Guest] = {}
    for side, why in job.why_not(cell).items():
        if why is not None:
            job.say(f"{cell.name}: {side} is left out: {why}")
            continue
        job.say(f"{cell.name}: dividing the graph for {side}")
        graph, parts = job.materials.graph(cell), job.materials.parts(cell)
        work = job.materials.work / "peers" / parts.path.name
        guests[side] = job.peers[side].join(config, graph, parts, work)
    return guests


def _look_for_merge(plan: Plan, folder: Path, begin: Callable[[str], None]) -> dict[str, Any]:
    """Find how many time steps to dissolve by the paper's rule (HopGNN, section 5.3).

    Each number has an epoch, and one more is dissolved for as long as epochs get shorter.
    """
    config, seconds = plan.out / CONFIG_FILE, list[float]()
    for number in range(plan.world):
        name = f"hop, {number} time steps dissolved"
        begin(name)
        words = [
            "--train.engine=hop",
            f"--hop.merge={number}",
            "--train.epochs=2",
            f"--train.iterations_per_epoch={_SCOUT_ITERATIONS}",
        ]
        summary = plan.train(name, config, folder / f"scout-{number}", words, 2 * plan.limit)
        # The first epoch warms up.
        seconds.append(summary["epochs"][1]["seconds"])
        if number and seconds[-1] >= seconds[-2]:
            break
    return {"dissolve": seconds.index(min(seconds)), "seconds": seconds}


def _scout_values(scout: Mapping[str, Any], world: int) -> dict[str, Value]:
    """Return the time steps and the seconds of each epoch that looked for the best number."""
    steps = [world - number for number in (*range(len(scout["seconds"])), scout["dissolve"])]
    return {
        **{f"time steps of epoch {epoch}": count for epoch, count in enumerate(steps)},
        **{f"seconds of epoch {epoch}": each for epoch, each in enumerate(scout["seconds"])},
    }


def _let_auto_choose(plan: Plan, folder: Path, begin: Callable[[str], None]) -> dict[str, Any]:
    """Return what ``train.engine = "auto"`` takes here, and what it tried."""
    begin("auto")
    words = ["--train.engine=auto", "--train.epochs=1"]
    plan.train("auto", plan.out / CONFIG_FILE, folder / "auto", words, plan.limit)
    choice: dict[str, Any] = json.loads((folder / "auto" / TUNING_FILE).read_text())
    return choice


def _auto_values(
    auto: Mapping[str, Any], sides: Mapping[str, Any], values: Mapping[str, dict[str, Value]]
) -> dict[str, Value]:
    """Return the rounds of the side that "auto" takes over those of the fastest side."""
    rounds = {side: as_list(values[side]["epoch seconds"]) for side in sides}
    chosen = [side for side, contender in sides.items() if contender.engine == auto["engine"]]
    if not chosen:
        return {}
    fastest = min(rounds, key=lambda side: median(rounds[side]))
    pairs = zip(rounds[chosen[0]], rounds[fastest], strict=True)
    return {"over the fastest": [taken / best for taken, best in pairs]}


def _guest_values(runs: Sequence[Mapping[str, Any]]) -> dict[str, Value]:
    epochs = [measured_epochs(run) for run in runs]
    turns = sum(epoch["iterations"] for run in runs for epoch in run["epochs"])
    sent = sum(sum(epoch["nic_bytes"]) for run in runs for epoch in run["epochs"])
    values: dict[str, Value] = {
        "epoch seconds": [sum(e["seconds"] for e in run) / len(run) for run in epochs],
        "interface MB": sent / turns / 1e6,
    }
    scores = [score for run in runs if (score := main_score(run, "test")) is not None]
    return values | ({"test accuracy": scores} if scores else {})


class Sample(NamedTuple):
    """The busiest GPU's utilisation, per cent, at a moment of the monotonic clock."""

    moment: float
    busy: float


def measure_gpu(job: Job, cell: Cell) -> Measured:
    """Compare all sides of a cell, and sample how busy the GPU is meanwhile.

    Raises
    ------
    RequestError: there is no GPU; says what is missing.
    """
    require_gpu(job.experiment.name)
    with _watch_gpu() as samples:

        def read_runs(runs: FirstRuns) -> dict[str, Any]:
            return {side: utilisation(samples, *training_time(run)) for side, run in runs.items()}

        return measure_ab(job, cell, read_runs)


def require_gpu(name: str) -> None:
    """Refuse an experiment where there is no GPU."""
    if gpu_name() is None:
        raise RequestError(
            f"{name}: this machine has no GPU that torch can use "
            "(torch.cuda.is_available() is False); run it where there is one"
        )
    if shutil.which(_QUERY[0]) is None:
        raise RequestError(f"{name}: nvidia-smi is missing; it tells how busy the GPU is")


def training_time(run: Path) -> tuple[float, float]:
    """Return when rank 0 of a run trained after its first epoch, on the monotonic clock."""
    opened, start, stop = 0.0, None, 0.0
    for line in (run / "spans" / "rank-0.jsonl").read_text().splitlines():
        span: dict[str, Any] = json.loads(line)
        if span.get("event") == OPENED:
            opened = float(span["monotonic"])
        elif "span" in span and span.get("epoch", 0) > 0:
            start = span["start"] if start is None else start
            stop = max(stop, span["start"] + span["seconds"])
    return opened + (start or 0.0), opened + stop


def utilisation(samples: Sequence[Sample], start: float, stop: float) -> dict[str, float]:
    """Return the peak utilisation and the share of samples in which the GPU did anything."""
    shares = [sample.busy for sample in samples if start <= sample.moment <= stop]
    if not shares:
        return {}
    busy = sum(value > 0 for value in shares) / len(shares)
    return {"peak utilisation": max(shares) / 100, "busy share": busy}


@contextmanager
def _watch_gpu() -> Iterator[list[Sample]]:
    samples: list[Sample] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            done = subprocess.run(_QUERY, capture_output=True, text=True, check=False, timeout=30)
            values = [float(line) for line in done.stdout.split() if line.isdigit()]
            if values:
                samples.append(Sample(time.perf_counter(), max(values)))

    thread = threading.Thread(target=watch, name="watching the GPU")
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()
