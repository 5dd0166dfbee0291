"""Training where features, and then topology, are larger than the memory of the machine.

usage: python -m benchmarks.train_memory --out DIR [--nodes 10000000] [--limits 3G,2G] [--rounds 5]

A graph with ten edges a node and features of 400 bytes is made and divided over four servers on
this machine. Two epochs of ten iterations are trained in a cgroup that holds launcher, servers,
ranks and their page cache to each of the limits, with no setting changed; every run begins with a
cold page cache. Needs root. Lines have the seconds of the second epoch and of the command, and the
MiB that the machine's disks read.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import HOPPER, bounded_group, run_measured
from benchmarks.rounds import Results, make_parser, positive, take_turns
from hopper.config.bounds import parse_size
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions
from hopper.graph.importers.npy import read_npy
from hopper.graph.importers.write_graph import write_tables
from hopper.partition import partition_graph

DEGREE, WIDTH, CLASSES, COMMUNITY, SERVERS = 10, 100, 16, 10_000, 4
LOCAL = 0.75
"""the share of edges within a community"""
BLOCK = 1 << 20


def iter_edges(nodes: int, generator: np.random.Generator) -> Iterator[tuple[Any, Any]]:
    """Iterate over sources and destinations of a graph of communities, in blocks."""
    for first in range(0, DEGREE * nodes, BLOCK):
        src = generator.integers(0, nodes, min(BLOCK, DEGREE * nodes - first))
        near = src // COMMUNITY * COMMUNITY + generator.integers(0, COMMUNITY, src.size)
        far = generator.integers(0, nodes, src.size)
        yield src, np.where(generator.random(src.size) < LOCAL, near.clip(0, nodes - 1), far)


def make_graph(work: Path, nodes: int) -> Path:
    """Make a graph of communities and divide it."""
    source, generator = work / "source", np.random.default_rng(0)
    source.mkdir()
    create = np.lib.format.open_memmap
    edges = create(source / "edges.npy", "w+", np.int64, (2, DEGREE * nodes))
    for number, ends in enumerate(iter_edges(nodes, generator)):
        edges[:, number * BLOCK : number * BLOCK + ends[0].size] = ends
    rows = create(source / "rows.npy", "w+", np.float32, (nodes, WIDTH))
    for first in range(0, nodes, BLOCK):
        part = rows[first : first + BLOCK]
        part[:] = generator.standard_normal(part.shape, np.float32)
    np.save(source / "labels.npy", np.arange(nodes) // COMMUNITY % CLASSES)
    np.save(source / "train.npy", np.sort(generator.permutation(nodes)[: nodes // 50]))
    meta = {
        "node_types": {"node": {"count": nodes, "feat_file": "rows.npy"}},
        "edge_types": [{"src": "node", "rel": "to", "dst": "node", "file": "edges.npy"}],
        "target_type": "node",
        "num_classes": CLASSES,
        "labels": {"node": "labels.npy"},
        "splits": {"train": {"file": "train.npy"}},
    }
    (source / "meta.json").write_text(json.dumps(meta))
    write_tables(read_npy(source), work / "graph", ImportOptions())
    shutil.rmtree(source)
    partition_graph(GraphDirectory.open(work / "graph"), work / "parts", SERVERS, "random")
    shutil.rmtree(work / "graph")
    return work / "parts"


def train(work: Path, parts: Path, engine: str, memory: int) -> dict[str, float]:
    """Train in a cgroup; return what was measured."""
    run = work / "run"
    shutil.rmtree(run, ignore_errors=True)
    words = ["--data.partitioned", str(parts), "--train.run_dir", str(run)]
    words += ["--model.name=sage", "--model.layers=2", "--model.hidden=64"]
    words += ["--sampler.fanouts=[10, 10]", "--train.batch_size=1000", f"--train.engine={engine}"]
    words += ["--train.epochs=2", "--train.iterations_per_epoch=10", "--train.evaluate_every=0"]
    (work / "empty.toml").touch()
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    before = _read_kib()
    with bounded_group(memory) as group:
        command = [*HOPPER, "train", str(work / "empty.toml"), *words]
        measured = run_measured(command, work / "log", group=group)
    read = (_read_kib() - before) / 1024
    epochs = [json.loads(line) for line in (run / "epochs.jsonl").read_text().splitlines()]
    return {
        "epoch seconds": epochs[-1]["seconds"],
        "seconds": measured["seconds"],
        "read MiB": read,
    }


def _read_kib() -> int:
    words = Path("/proc/vmstat").read_text().split()
    return int(words[words.index("pgpgin") + 1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--nodes", type=positive, default=10_000_000)
    parser.add_argument("--limits", default="8G,3G,2.5G,2G")
    parser.add_argument("--engines", default="zero_hop,cooperative")
    options = parser.parse_args(arguments)
    results = Results("train-memory", options.out)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        work = Path(folder)
        parts = make_graph(work, options.nodes)
        for engine in options.engines.split(","):
            sides = {
                text: lambda _, text=text, engine=engine: train(
                    work, parts, engine, parse_size(text, "--limits")
                )
                for text in options.limits.split(",")
            }
            measured = take_turns(sides, options.rounds, warm_up=0)
            first, *others = sides
            cell = f"{options.nodes} nodes, {engine}"
            results.add(cell, measured, {name: [first] for name in others})
    return 0


if __name__ == "__main__":
    sys.exit(main())
