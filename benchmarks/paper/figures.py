"""The values of one side of an A/B: times, bytes beside their bounds, rows, memory, and more.

Times are lists, one for each round; counts are means of a rank and iteration over the measured
epochs, bytes of all ranks. The lower bound of feature bytes is the number of rows a rank fetched in
an iteration, each once, times the bytes of a row; that of gradient bytes is 2 (N - 1) / N times the
parameters, for every rank and iteration (what a ring all-reduce sends).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import numpy as np

from benchmarks.paper.job import ROOT_SECONDS, SENT_BYTES, Value, Values, as_list, middle
from hopper.bench.contender import Contender
from hopper.bench.layer_work import read_layer_work, unevenness
from hopper.bench.statistics import figures, measured_epochs
from hopper.cluster.traffic import CAUSES
from hopper.config import Config
from hopper.engines import Request
from hopper.engines.assemble import make_model, make_schedule
from hopper.engines.hop import Hop
from hopper.hetero.meta_partition import divide
from hopper.micrograph.merge import make_time_steps
from hopper.models.relation_layer import RelationLayer
from hopper.models.relational import HGNN
from hopper.partition import PartitionedGraph
from hopper.train.results import main_score
from hopper.train.tuning import read_tuning

MEGA: Final = 1e6
MIB: Final = 2**20
SPANS_FOLDER: Final = "spans"
_LEARNABLE: Final = {"gather": "read", "sync": "send", "compute": "update"}
"""by stage, what it does with learnable rows in an iteration"""
_WORK: Final = {
    "own": "rows projected",
    "destinations": "destinations",
    "edges": "edges",
    "sent": "rows sent",
    "received": "rows received",
}
_PIPELINE: Final = (("sample",), ("gather",), ("compute", "migrate", "sync", "wait"))
"""what a pipeline overlaps: planning, reading, and training with its messages and waits"""
_OFF: Final = ":pipeline.depth=0"
_SINGLE_STEP: Final = ("model_centric", "zero_hop", "locality")
_MERGED_ITERATIONS: Final = 64
"""of the first epoch, at most, over which the spread of models is averaged"""


@dataclass(frozen=True)
class RunsOf:
    """One side of a cell and what it ran.

    config, graph: the cell's. folder: of the first timed run. entries: of results.json.
    """

    contender: Contender
    config: Config
    graph: PartitionedGraph
    folder: Path
    entries: Sequence[Mapping[str, Any]]

    @property
    def epochs(self) -> list[Mapping[str, Any]]:
        """All measured epochs of all rounds."""
        return [epoch for run in self.entries for epoch in measured_epochs(run)]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.entries[0]["peak_rss_mib"])

    @property
    def request(self) -> Request:
        """What its engine is asked for."""
        configured = self.contender.configure(self.config)
        return Request(configured, self.contender.graph(self.config))


def values_of(side: RunsOf, results: Mapping[str, Any]) -> dict[str, Value]:
    """Return all values of one side of an A/B."""
    model = make_model(Request(side.config, side.graph))
    parameter_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    size = row_bytes(results["dataset"])
    nodes = sum(kind["count"] for kind in results["dataset"]["node_types"].values())
    values: dict[str, Value] = {}
    for part in (
        _times(side),
        _bytes(side, parameter_bytes, size),
        _rows(side, nodes, size),
        _hit_rates(side),
        read_held_rows(side, size),
        _layer_work(side),
        _merging(side),
        _parity(side, results["parity"]),
        _partials(side),
    ):
        values.update(part)
    scores = [score for run in side.entries if (score := main_score(run, "test")) is not None]
    if scores:
        values["test accuracy"] = scores
    return values


def _times(side: RunsOf) -> Iterator[tuple[str, Value]]:
    runs = [measured_epochs(run) for run in side.entries]
    iterations = fmean(epoch["iterations"] for epoch in side.epochs)
    epochs = [fmean(epoch["seconds"] for epoch in run) for run in runs]
    yield "epoch seconds", epochs
    yield "iteration seconds", [seconds / iterations for seconds in epochs]
    schedule = make_schedule(side.request)
    roots = fmean(schedule.batch(0, index).size for index in range(schedule.iterations))
    yield ROOT_SECONDS, [1000 * seconds / iterations / roots for seconds in epochs]
    yield (
        "seconds of all epochs",
        [sum(e["seconds"] for e in run["epochs"]) for run in side.entries],
    )
    by_round = [
        {stage: fmean(e["stage_seconds"][stage] for e in run) for stage in run[0]["stage_seconds"]}
        for run in runs
    ]
    for stage in by_round[0]:
        yield f"{stage} seconds of an iteration", [s[stage] / iterations for s in by_round]
    totals = [sum(stages.values()) or 1.0 for stages in by_round]
    for name, stages in {
        "gathering": ("gather",),
        "sampling and computing": ("sample", "compute"),
    }.items():
        yield (
            f"{name} share",
            [
                sum(s[stage] for stage in stages) / total
                for s, total in zip(by_round, totals, strict=True)
            ],
        )
    yield (
        "processor seconds of an iteration",
        [fmean(max(epoch["cpu_seconds"]) for epoch in run) / iterations for run in runs],
    )


def _bytes(side: RunsOf, parameter_bytes: int, size: int | None) -> Iterator[tuple[str, Value]]:
    """Yield bytes of an iteration, and of whole runs over their lower bounds."""
    iterations = fmean(epoch["iterations"] for epoch in side.epochs)
    by_cause = figures(side.entries, side.contender.label).bytes
    yield SENT_BYTES, sum(by_cause.values())
    for cause in CAUSES:
        yield f"{cause} MB", by_cause[cause] / iterations / MEGA
    yield (
        "fetched bytes over bytes of the model",
        by_cause["feature"] / side.ranks / iterations / parameter_bytes,
    )
    epochs = [epoch for run in side.entries for epoch in run["epochs"]]
    sent = {cause: sum(epoch["bytes"][cause] for epoch in epochs) for cause in CAUSES}
    turns = sum(epoch["iterations"] for epoch in epochs)
    bound = sum(epoch["rows"]["remote_unique"] for epoch in epochs) * (size or 0)
    if bound:
        yield "feature bytes over bound", sent["feature"] / bound
    # Under raf some gradients have a single owner and need no sum.
    if side.contender.engine != "raf" and side.ranks > 1:
        ring = 2 * (side.ranks - 1) * parameter_bytes * turns
        yield "gradient bytes over bound", sent["gradient"] / ring
    if all(run["nic_bytes"] is not None for run in side.entries):
        nic = sum(sum(run["nic_bytes"]) for run in side.entries)
        yield "interface MB", nic / turns / MEGA
        if bound:
            others = sum(sent.values()) - sent["feature"]
            yield "interface feature bytes over bound", (nic - others) / bound


def row_bytes(dataset: Mapping[str, Any]) -> int | None:
    """Return the bytes of one row of features; None without features, or if types differ."""
    sizes = {
        int(kind["feature_dim"]) * np.dtype(kind["feature_dtype"]).itemsize
        for kind in dataset["node_types"].values()
        if kind["feature_dim"]
    }
    return sizes.pop() if len(sizes) == 1 else None


def _rows(side: RunsOf, nodes: int, size: int | None) -> Iterator[tuple[str, Value]]:
    turns = side.ranks * fmean(epoch["iterations"] for epoch in side.epochs)
    per_epoch = figures(side.entries, side.contender.label).rows
    rows = {kind: count / turns for kind, count in per_epoch.items()}
    total = rows["local"] + rows["remote"]
    yield "input rows", total
    yield "share of the graph that a batch reads", total / nodes
    yield "fetched rows", rows["remote_unique"]
    if total:
        yield "miss rate", rows["remote"] / total
    if size is not None:
        yield "fetched MiB held", size * rows["remote_unique"] / _steps(side) / MIB
    yield "peak MiB", max(value for run in side.entries for value in run["peak_rss_mib"])


def _steps(side: RunsOf) -> int:
    """Return how many portions an iteration's fetched rows come and go in: the time steps of hop
    without pre-gathering; 1 for all that fetch an iteration's rows at once."""
    options = side.entries[0]["options"]
    if side.contender.engine in _SINGLE_STEP or options.get("pregather", True):
        return 1
    merge = options.get("merge")
    return side.ranks - (merge if isinstance(merge, int) else 0)


def _hit_rates(side: RunsOf) -> Iterator[tuple[str, Value]]:
    """Yield the share of rows looked for in a cache that were found, of all types and of each."""
    lookups: dict[str, list[int]] = {}
    for epoch in side.epochs:
        for node_type, (hits, misses) in epoch["lookups"].items():
            for name in ("cache hit share", f"cache hit share of {node_type}"):
                counts = lookups.setdefault(name, [0, 0])
                lookups[name] = [counts[0] + hits, counts[1] + misses]
    yield from ((name, h / (h + m)) for name, (h, m) in lookups.items() if h + m)


def read_held_rows(side: RunsOf, size: int | None) -> Iterator[tuple[str, Value]]:
    """Yield what the spans of the first run tell: the largest input of a forward pass, the requests
    to other servers, and the seconds that learnable rows take of an iteration.

    A rank asks other servers for rows in every ``gather`` span of an iteration without
    pre-gathering, and once, in the span that says so, in one with it.
    """
    largest = requests = 0
    learnable, moments = dict.fromkeys(_LEARNABLE.values(), 0.0), set()
    files = sorted((side.folder / SPANS_FOLDER).glob("rank-*.jsonl"))
    for file in files:
        counts: dict[tuple[int, int], tuple[int, int]] = {}
        for line in file.read_text().splitlines():
            span: dict[str, Any] = json.loads(line)
            if "iteration" not in span:
                continue
            moment = (span.get("epoch", 0), span["iteration"])
            is_learnable = span.get("operation") == "learnable rows"
            if moment[0] > 0:
                moments.add((file.name, *moment))
                if is_learnable and span["span"] in _LEARNABLE:
                    learnable[_LEARNABLE[span["span"]]] += span["seconds"]
            if span.get("span") != "gather" or is_learnable:
                continue
            ahead, passes = counts.get(moment, (0, 0))
            if span.get("operation") == "pregather":
                ahead += 1
            else:
                passes += span.get("operation") != "own rows"
                largest = max(largest, int(span.get("rows", 0)))
            counts[moment] = (ahead, passes)
        requests += sum(ahead or passes for ahead, passes in counts.values())
    if not files:
        return
    turns = sum(epoch["iterations"] for epoch in side.entries[0]["epochs"])
    yield "requests", requests / side.ranks / turns
    if size is not None:
        yield "largest pass MiB", largest * size / MIB
    if any(learnable.values()):
        for name, seconds in learnable.items():
            yield f"learnable {name} seconds", seconds / len(moments)
        iteration = median(e["seconds"] / e["iterations"] for e in side.epochs)
        yield "learnable share", sum(learnable.values()) / len(moments) / iteration


def _layer_work(side: RunsOf) -> Iterator[tuple[str, Value]]:
    """Yield how an engine divides the computation of layers among ranks, by layer."""
    for layer, work in enumerate(read_layer_work(side.folder / SPANS_FOLDER), 1):
        for name, text in _WORK.items():
            by_rank = getattr(work, name)
            most = unevenness(by_rank)
            if most is not None:
                yield f"layer {layer}: {text}", sum(by_rank)
                yield f"layer {layer}: {text}, busiest over mean", most


def _merging(side: RunsOf) -> Iterator[tuple[str, Value]]:
    """Yield how many groups of models are trained one after another, and what tuning chose."""
    request = side.request
    if side.contender.engine != "hop":
        return
    dissolve = request.config.hop.merge
    if isinstance(dissolve, int) and 0 < dissolve < side.ranks - 1:
        schedule, selection = make_schedule(request), request.config.hop.merge_selection
        busiest = []
        for index in range(min(schedule.iterations, _MERGED_ITERATIONS)):
            batch, seed = schedule.batch(0, index), request.config.train.seed
            steps = make_time_steps(batch, side.ranks, dissolve, selection, seed)
            counts = [np.bincount(step, minlength=side.ranks) for step in steps.ranks.T]
            busiest.append(sum(int(count.max()) for count in counts))
        yield "groups one after another", fmean(busiest)
    if dissolve == "adaptive":
        options = read_tuning(side.folder, side.contender.label).options
        yield "dissolved time steps", options[Hop.spec.raised_option]


def compare_pipelines(values: Values, on: tuple[str, RunsOf], off: tuple[str, RunsOf]) -> None:
    """Add how near a pipeline comes to the longest of what it overlaps: the slowest stage alone, as
    it is without a pipeline, or the processor time of all ranks over their cores."""
    if f"{on[1].contender.label}{_OFF}" != off[1].contender.label:
        return

    def seconds(side: str, stage: str) -> float:
        return middle(values[side][f"{stage} seconds of an iteration"])

    stages = [sum(seconds(off[0], stage) for stage in part) for part in _PIPELINE]
    busy = seconds(on[0], "processor") * on[1].ranks / len(os.sched_getaffinity(0))
    ideal = max(*stages, busy)
    taken = as_list(values[on[0]]["iteration seconds"])
    values[on[0]]["share of the ideal"] = [ideal / iteration for iteration in taken]


def _parity(side: RunsOf, parity: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
    label = side.contender.label
    for name in ("gradient", "loss"):
        yield f"largest {name} difference", parity[f"max_relative_{name}_difference"][label]


def _partials(side: RunsOf) -> Iterator[tuple[str, Value]]:
    """Yield the bytes of partial aggregations under raf beside what the layers make it send.

    For every root and remote group of servers that is one partial and its gradient in every layer
    that makes rows of the roots, and, where aggregations read these, a finished row and its
    gradient in all of these layers but the last.
    """
    if side.contender.engine != "raf":
        return
    # The cell's graph is divided by node. The figures are about a division by relation.
    request = Request(side.config, side.graph)
    schema, tree, model = side.graph.schema, request.reads.tree, make_model(request)
    assert tree is not None
    assert isinstance(model, HGNN)
    shares = divide(schema, tree, side.graph.book.servers).shares
    groups = len({share.roots for share in shares})
    schedule = make_schedule(request)
    roots = fmean(schedule.batch(0, index).size for index in range(schedule.iterations))
    item = 8 if request.config.train.dtype == "float64" else 4
    layers = model.root_layers()
    width = sum(map(_partial_width, layers))
    if any(layer.aggregations_read(model.target) for layer in layers):
        width += request.config.model.hidden * (len(layers) - 1)
    bound = 2 * roots * (groups - 1) * item * width
    sent = figures(side.entries, side.contender.label).bytes["partial"]
    iterations = fmean(epoch["iterations"] for epoch in side.epochs)
    yield "groups of servers", float(groups)
    if bound:
        yield "partial bytes over bound", sent / iterations / bound


def _partial_width(layer: RelationLayer) -> int:
    """Return the numbers of a partial: of the joint softmax also a largest logit and a normaliser
    per head, of a mean also how many relations it is of."""
    extra = {"softmax": 2 * layer.nothing[0], "mean": 1}
    return int(np.prod(layer.nothing)) + extra.get(layer.combination.algebra, 0)
