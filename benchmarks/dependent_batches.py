"""Draws that last for k iterations: bytes and seconds on large graphs, accuracy on real ones.

usage: python -m benchmarks.dependent_batches --data DIR --out DIR [--rounds 5] [--seeds 10]
           [--only bytes|accuracy] [PRESET:SCALE ...]

Cells of graphs are ``zero_hop`` on four servers with fanouts (10, 10, 10), epochs of at most 64
batches of 1,024 roots, and a look-ahead of 64 iterations whose rows may take a tenth of the
features, by node-wise draws and by LABOR's; a line has the MB of features of an epoch, and its
seconds, on loopback. Cells of data sets (cora, ms_academic_cs, amazon_computers and tolokers of
DIR, as benchmarks.real_graphs reads them) are GraphSAGE with fanouts (5, 5) and twenty batches an
epoch, on two servers; a round is a seed, and a line has the test accuracy. Sides are the values of
``sampler.dependence``.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.partitioners import open_graph
from benchmarks.real_graphs import (
    BAG_OF_WORDS,
    COUNTS,
    RUN_SECONDS,
    SHARES,
    keep_largest_component,
)
from benchmarks.rounds import Results, make_parser, positive, take_turns
from hopper.bench.statistics import measured_epochs
from hopper.bench.train_process import train_in_process
from hopper.graph import GraphDirectory
from hopper.graph.importers import RandomSplit, write_tables
from hopper.graph.importers.npy import read_npy
from hopper.partition import PartitionedGraph, partition_graph

LASTING = (1, 64)
SAMPLERS = {"node": "", "labor": ", LABOR"}
LARGE_ITERATIONS, ITERATIONS = 64, 20
DATA_SETS = {
    "cora": BAG_OF_WORDS,
    "ms_academic_cs": BAG_OF_WORDS,
    "amazon_computers": SHARES,
    "tolokers": COUNTS,
}
PRESETS = ["products-like:0.2"]


def train_large(
    parts: Path, work: Path, sampler: str, lasting: int, _: int = 0
) -> dict[str, float]:
    """Train three epochs of a graph; return what the second took."""
    schema = PartitionedGraph.open(parts).schema
    features = sum(4 * kind.count * (kind.feature_dim or 0) for kind in schema.node_types.values())
    words = [f"--data.partitioned={parts}", f"--sampler.dependence={lasting}"]
    words += [f"--sampler.kind={sampler}"]
    words += ["--model.name=sage", "--model.layers=3", "--sampler.fanouts=[10, 10, 10]"]
    words += ["--train.engine=zero_hop", "--train.batch_size=256", "--train.epochs=3"]
    words += [f"--train.iterations_per_epoch={LARGE_ITERATIONS}"]
    words += ["--train.evaluate_every=0", f"--pipeline.lookahead={max(LASTING)}"]
    words += [f"--pipeline.lookahead_memory={features // 10}"]
    (work / "empty.toml").touch()
    run = Path(tempfile.mkdtemp(dir=work))
    summary = train_in_process("run", work / "empty.toml", run, words, RUN_SECONDS)
    epochs = measured_epochs(summary)
    return {
        "epoch MB of features": fmean(epoch["bytes"]["feature"] for epoch in epochs) / 1e6,
        "epoch seconds": fmean(epoch["seconds"] for epoch in epochs),
    }


def train_real(name: str, source: Path, work: Path, seed: int) -> dict[str, dict[str, float]]:
    """Train a data set with each value; return the test accuracy by value."""
    folder = work / f"{name}-{seed}"
    tables = read_npy(source / name)
    split = (
        None if any(n.splits for n in tables.nodes.values()) else RandomSplit.parse("random:20:30")
    )
    if name == "amazon_computers":
        keep_largest_component(tables)
    write_tables(
        tables, folder / "graph", dataclasses.replace(DATA_SETS[name], split=split, seed=seed)
    )
    partition_graph(GraphDirectory.open(folder / "graph"), folder / "parts", 2)
    (work / "empty.toml").touch()
    roots = PartitionedGraph.open(folder / "parts").schema.splits["train"]
    accuracy = {}
    for lasting in LASTING:
        words = [f"--data.partitioned={folder / 'parts'}", f"--sampler.dependence={lasting}"]
        words += ["--model.name=sage", "--model.layers=2", "--sampler.fanouts=[5, 5]"]
        words += ["--model.hidden=64", "--model.dropout=0.5", "--train.engine=zero_hop"]
        words += [f"--train.batch_size={roots // (2 * ITERATIONS)}", "--train.epochs=30"]
        words += ["--train.learning_rate=0.01"]
        words += ["--train.weight_decay=0.0005", f"--train.seed={seed}", "--train.evaluate_every=5"]
        run = folder / str(lasting)
        summary = train_in_process(
            f"{name}, {lasting}", work / "empty.toml", run, words, RUN_SECONDS
        )
        accuracy[f"k = {lasting}"] = {"test accuracy": summary["scores"]["test"]["accuracy"]}
    return accuracy


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("graphs", nargs="*", metavar="PRESET:SCALE", default=PRESETS)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seeds", type=positive, default=10)
    parser.add_argument("--only", choices=("bytes", "accuracy"))
    options = parser.parse_args(arguments)
    results = Results("dependent-batches", options.out)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        work = Path(folder)
        for name in options.graphs if options.only != "accuracy" else ():
            graph, parts = open_graph(name, work), work / f"{name}-parts"
            partition_graph(GraphDirectory.open(graph), parts, 4)
            for sampler, suffix in SAMPLERS.items():
                train = partial(train_large, parts, work, sampler)
                sides = {f"k = {k}": partial(train, k) for k in LASTING}
                measured = take_turns(sides, options.rounds)
                against = {side: ["k = 1"] for side in list(sides)[1:]}
                results.add(f"{name}{suffix}", measured, against)
        for name in DATA_SETS if options.only != "bytes" else ():
            seeds = [train_real(name, options.data, work, seed) for seed in range(options.seeds)]
            measured = {
                side: {"test accuracy": np.array([[seed[side]["test accuracy"]] for seed in seeds])}
                for side in seeds[0]
            }
            results.add(name, measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
