"""Measures whose sides train in turns, and are read instead of timed against each other: "seeds"
(scores of whole trainings, seed by seed) and "penalties" (what a missing byte costs)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import numpy as np

from benchmarks.paper.cells import Cell
from benchmarks.paper.job import ROOT_SECONDS, Job, Measured, Value, Values, graph_size
from benchmarks.paper.materials import SEED
from hopper.bench.contender import Contender
from hopper.bench.placement import open_hosts
from hopper.config import Config
from hopper.engines import Request
from hopper.engines.assemble import make_schedule
from hopper.errors import RequestError
from hopper.files.whole_files import write_text
from hopper.hetero.cache_profile import CacheProfile, load_profile, profile_file
from hopper.partition import PartitionedGraph
from hopper.partition.partitioner import Assigner
from hopper.timing.phases import Phases
from hopper.train.results import main_score
from hopper.train.warm_cache import list_cacheable_tables, profile_key

REACHED: Final = 0.95
"""the share of the first side's best validation score up to which a run's time is reported"""
CLUSTERS: Final = "benchmarks.cluster_gcn"
"""the plug-in with ClusterGCN's batches (DistDGLv2, Figure 9)"""
_NODES_A_CLUSTER: Final = 128
"""about as many as ClusterGCN's own divisions of Amazon2M have"""
_RUN_SECONDS: Final = 3600.0
_SCORES: Final = {"training": "train", "validation": "val"}

Run = Mapping[str, Any]
"""one training: ``test``, and ``points``, a scored epoch each: ``epochs`` and ``seconds`` of
training until then, ``train`` and ``val``"""


def train_turns(
    job: Job,
    cell: Cell,
    turns: Mapping[str, tuple[str, ...]],
    take: Callable[[Contender, Config, Mapping[str, Any]], Any],
) -> dict[str, list[Any]]:
    """Train all sides of a cell in turns, over the same links.

    Parameters
    ----------
    turns: by name, what the runs of a turn add to the configuration.
    take: from a side, the cell's configuration and a run's summary to what is kept of the run.

    Returns
    -------
    By side, what was taken of its run in every turn.
    """
    config = job.config(cell, job.materials.parts(cell).path.absolute())
    sides = job.contenders(cell)
    words = {side: (*c.words, *_cluster_words(job, cell, c)) for side, c in sides.items()}
    folder = job.run_folder(cell)
    file = folder / "config.json"
    write_text(file, config.model_dump_json(indent=1) + "\n")
    taken: dict[str, list[Any]] = {side: [] for side in sides}
    root = str(Path(__file__).resolve().parents[2])
    path = [word for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word]
    if root not in path:
        # Ranks import this checkout's plug-ins.
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *path])
    with open_hosts(job.request(cell), job.say) as (train, _):
        for turn, of_turn in turns.items():
            for side, contender in sides.items():
                name = f"{cell.name}: {side}, {turn}"
                job.begin(name)
                run_dir = folder / f"{contender.folder}-{turn}".replace(" ", "-")
                summary = train(name, file, run_dir, [*words[side], *of_turn], _RUN_SECONDS)
                taken[side].append(take(contender, config, summary))
                seconds = sum(epoch["seconds"] for epoch in summary["epochs"])
                job.say(f"{name}: {len(summary['epochs'])} epochs in {seconds:.1f} s")
    return taken


def measure_seeds(job: Job, cell: Cell) -> Measured:
    """Train every side with every seed, and with the first once more in float64, whose rounding
    hides no difference between sides."""
    seeds = range(job.experiment.rounds)
    turns: dict[str, tuple[str, ...]] = {f"seed {s}": (f"--train.seed={s}",) for s in seeds}
    turns["seed 0 in float64"] = ("--train.seed=0", "--train.dtype=float64")
    runs = train_turns(job, cell, turns, _take_curve)
    in_float64 = {side: of_side.pop() for side, of_side in runs.items()}
    graph = job.materials.parts(cell)
    config = job.config(cell, graph.path)
    schedule = make_schedule(Request(config, graph))
    roots = sum(schedule.batch(0, index).size for index in range(schedule.iterations))
    first = next(iter(runs))
    values: Values = {
        side: _seed_values(of_side, runs[first], roots) for side, of_side in runs.items()
    }
    for side, contender in job.contenders(cell).items():
        if side != first and contender.exact(config):
            values[side] |= _float64_values(in_float64[side], in_float64[first])
    record = {**graph_size(graph), "runs": runs, "in_float64": in_float64}
    return Measured(values, record)


def _take_curve(side: Contender, _config: Config, summary: Mapping[str, Any]) -> Run:
    spent = accumulate(epoch["seconds"] for epoch in summary["epochs"])
    points = [
        {
            "epochs": epoch["epoch"] + 1,
            "seconds": seconds,
            **{score: epoch.get(score) for score in _SCORES.values()},
        }
        for epoch, seconds in zip(summary["epochs"], spent, strict=True)
        if epoch["val"] is not None
    ]
    if not points:
        raise RequestError(
            f"{side.label}: no epoch was scored; expected a graph with validation nodes, and "
            f"train.evaluate_every of at most the {len(summary['epochs'])} epochs"
        )
    return {"test": main_score(summary, "test"), "points": points}


def _seed_values(runs: Sequence[Run], first: Sequence[Run], roots: int) -> dict[str, Value]:
    """Return a side's values, seed by seed, beside those of the first side."""
    values: dict[str, Value] = {}
    for name, score in _SCORES.items():
        if _scores(runs[0], score):
            values[f"{name} accuracy"] = [_scores(run, score)[-1] for run in runs]
            values[f"best {name} accuracy"] = [max(_scores(run, score)) for run in runs]
    if all(run["test"] is not None for run in (*runs, *first)):
        values["test accuracy"] = [run["test"] for run in runs]
        pairs = zip(runs, first, strict=True)
        values["accuracy lost in points"] = [100 * (b["test"] - run["test"]) for run, b in pairs]
    aims = [REACHED * max(_scores(run, "val")) for run in first]
    reached = [p for run, aim in zip(runs, aims, strict=True) if (p := reach(run, aim)) is not None]
    values["seeds that reach 95 %"] = float(len(reached))
    for key in ("epochs", "seconds"):
        if reached:
            values[f"{key} to 95 %"] = [float(point[key]) for point in reached]
    seconds = []
    for run in runs:
        points = run["points"]
        # The first epoch warms up, where it is not the only one.
        epochs = [after["seconds"] - before["seconds"] for before, after in pairwise(points)]
        seconds.append(median(epochs) if epochs else points[0]["seconds"])
    values["epoch seconds"] = seconds
    values[ROOT_SECONDS] = [1000 * value / roots for value in seconds]
    return values


def reach(run: Run, aim: float) -> Mapping[str, Any] | None:
    """Return the first point with a validation score of at least ``aim``; None if there is none."""
    return next((point for point in run["points"] if point["val"] >= aim), None)


def _float64_values(run: Run, first: Run) -> dict[str, Value]:
    """Return how far a side's scores are from the first exact side's, over all scored epochs."""
    values: dict[str, Value] = {}
    for name, score in _SCORES.items():
        pairs = zip(_scores(run, score), _scores(first, score), strict=True)
        gaps = [abs(value - base) for value, base in pairs]
        if gaps:
            values[f"float64: {name}, largest difference, points"] = 100 * max(gaps)
    return values


def _scores(run: Run, score: str) -> list[float]:
    return [point[score] for point in run["points"] if point[score] is not None]


def _cluster_words(job: Job, cell: Cell, side: Contender) -> tuple[str, ...]:
    """Return what ClusterGCN's side sets besides the engine: all edges within a batch are read."""
    if not side.engine.startswith(CLUSTERS):
        return ()
    clusters, per_batch = count_clusters(job.materials.parts(cell), cell.batch_size)
    quoted = json.dumps(str(_divide(job, cell, clusters)), ensure_ascii=False)
    return (
        f"--sampler.kind={CLUSTERS}:ClusterSampler",
        f"--sampler.kind_options={{clusters = {quoted}, per_batch = {per_batch}}}",
        f"--sampler.fanouts={[-1] * cell.layers}",
    )


def count_clusters(graph: PartitionedGraph, batch_size: int) -> tuple[int, int]:
    """Return how many clusters a graph is divided into, and how many of them make a rank's batch,
    so that it has about ``batch_size`` training nodes."""
    training = graph.split("train").size
    nodes = graph.schema.node_types[graph.schema.target_type()].count
    clusters = max(2, nodes // _NODES_A_CLUSTER, training // batch_size)
    return clusters, max(1, round(batch_size * clusters / training))


def _divide(job: Job, cell: Cell, clusters: int) -> Path:
    """Divide a cell's graph into clusters by METIS, which balances their nodes and edges but no
    training nodes; returns the file of every node's cluster."""
    graph = job.materials.graph(cell)
    folder = (job.materials.work / "clusters").absolute()
    path = folder / f"{graph.path.name}-{clusters}.npy"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        job.say(f"dividing {graph.path.name} into {clusters} clusters")
        assigner = Assigner("metis", np.empty(0, np.int64), Phases(), folder)
        homes = assigner.assign(graph, clusters, SEED)[graph.schema.target_type()]
        np.save(path, homes.astype(np.int64), allow_pickle=False)
    return path


def measure_penalties(job: Job, cell: Cell) -> Measured:
    """Let every side profile itself, in as many rounds as a comparison has (Heta, Figure 7).

    A short run with a cache profiles itself before its first iteration, and keeps the profile
    beside the partitions (docs/howto/cache.md). Penalties are measured by all ranks at once, over
    the links and on the disk that training uses.
    """
    turns: dict[str, tuple[str, ...]] = {
        f"round {turn + 1} of {job.experiment.rounds}": () for turn in range(job.experiment.rounds)
    }
    runs = train_turns(job, cell, turns, _take_profiles)
    values = {side: penalty_values(of_side) for side, of_side in runs.items()}
    return Measured(values, {**graph_size(job.materials.parts(cell)), "runs": runs})


def _take_profiles(side: Contender, config: Config, _summary: Any) -> dict[str, dict[str, Any]]:
    request = Request(side.configure(config), side.graph(config))
    key = profile_key(request)
    ranks = range(request.ranks)
    profiles = [load_profile(profile_file(request.graph.path, key, rank)) for rank in ranks]
    return describe_types(request, profiles)


def describe_types(request: Request, profiles: Sequence[CacheProfile]) -> dict[str, dict[str, Any]]:
    """Return what the profiles of all ranks say, by node type that any of them visited.

    Returns
    -------
    learned: whether rows are learned, and lie beside the optimiser's state of them. width: numbers
    of a row. row_bytes: of what is missed, the state included. penalties: seconds of a missing
    byte, of each rank that reads any.
    """
    tables, types = list_cacheable_tables(request), {}
    for name, first in profiles[0].types.items():
        visited = [of.types[name] for of in profiles if of.types[name].ids.size]
        if visited:
            dim = request.config.learnable.dim or request.config.model.hidden
            learned = name in tables
            types[name] = {
                "learned": learned,
                "width": dim if learned else request.schema.node_types[name].feature_dim,
                "row_bytes": first.row_bytes,
                "penalties": [float(of.values.sum()) / of.total for of in visited],
            }
    return types


def penalty_values(runs: Sequence[Mapping[str, Any]]) -> dict[str, Value]:
    """Return the microseconds of a missing byte and row by type, and those of learnable rows over
    those of features of the same width; each a mean over ranks, round by round."""
    values: dict[str, Value] = {}
    micros: dict[str, list[float]] = {}
    for name, kind in sorted(runs[0].items(), key=lambda item: (item[1]["width"], item[0])):
        micros[name] = [1e6 * fmean(run[name]["penalties"]) for run in runs]
        learned = ", learnable" if kind["learned"] else ""
        text = f"{name} ({kind['width']} numbers{learned})"
        values[f"{text}, microseconds a byte"] = micros[name]
        values[f"{text}, microseconds a row"] = [m * kind["row_bytes"] for m in micros[name]]
    for name, kind in runs[0].items():
        for other, base in runs[0].items():
            if kind["learned"] and not base["learned"] and kind["width"] == base["width"]:
                pairs = list(zip(micros[name], micros[other], strict=True))
                values[f"{name} over features of {other}, a byte"] = [a / b for a, b in pairs]
    return values
