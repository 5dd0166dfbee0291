"""What a process maps of a graph whose topology is partitioned, beside its share of the graph.

usage: python -m benchmarks.server_share --out DIR [--presets arxiv-like,mag-like] [--scale 1]
           [--servers 16]

Every preset is made in three sizes and divided at random, which cuts most edges. A feature server
of server 0 starts, and processes map what a rank beside it does as it samples and computes a batch
of one layer. The kernel says which files a process has mapped. Sides: ``server``, and ``rank`` by
model. Lines of a cell have, of the largest size, the MB of mapped files that are the server's own,
the MB of the others, all of them over the server's share of the graph, and the MB in memory that
are no file's. ``bytes a node`` of mapped files that are not the server's own are fitted on all
three sizes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.rounds import Results, make_parser, positive
from hopper.config import make_config
from hopper.engines.assemble import make_model, make_sampler, make_schedule
from hopper.engines.request import Request
from hopper.graph import GraphDirectory
from hopper.graph.synthesise import make
from hopper.partition import PartitionedGraph, partition_graph

SIZES = (0.25, 0.5, 1.0)
MODELS: dict[str, dict[str, Any]] = {
    "rank, no dropout": {"name": "sage", "dropout": 0.0},
    "rank, dropout": {"name": "sage", "dropout": 0.5},
    "rank, gcn": {"name": "gcn", "dropout": 0.0},
    "rank, typed": {"name": "rgcn", "dropout": 0.0},
    "rank, typed, dropout": {"name": "rgcn", "dropout": 0.5},
}


@contextmanager
def running_server(parts: Path) -> Iterator[psutil.Process]:
    """Start the feature server of server 0."""
    command = [sys.executable, "-m", "cache_server", str(parts), "--server", "0"]
    process = psutil.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE)
    try:
        # It says its address when it serves.
        process.stdout.readline()
        yield process
    finally:
        process.terminate()
        process.wait()


def run_rank(parts: Path, model: dict[str, Any]) -> None:
    """Sample and compute a batch of the server's own roots, as a rank does, then wait."""
    sizes = {"layers": 1, "hidden": 8, **model}
    config = make_config(
        {"data": {"partitioned": str(parts)}, "model": sizes, "sampler": {"fanouts": [10]}}
    )
    request = Request(config, PartitionedGraph.open(parts))
    sampler, own = make_sampler(request, 0), request.graph.book.range(request.reads.target, 0)
    schedule = make_schedule(request)
    roots = schedule.batch(0, 0).roots
    roots = roots[(roots >= own[0]) & (roots < own[1])]
    subgraph = sampler.sample(roots, 0, 0)
    rows = {
        name: torch.zeros(subgraph.nodes[name].size, read.width)
        for name, read in request.reads.inputs.items()
    }
    for name in request.schema.node_types:
        features = request.graph.features(name, 0)
        if features is not None:
            features[:1].sum()
    if request.config.model.typed:
        make_model(request)(subgraph.typed_blocks(), rows)
    else:
        make_model(request)(subgraph.blocks(), rows[request.reads.target])
    print("mapped", flush=True)
    sys.stdin.read()


@contextmanager
def running_rank(parts: Path, model: dict[str, Any]) -> Iterator[psutil.Process]:
    """Start :func:`run_rank` in a process."""
    command = [sys.executable, "-m", "benchmarks.server_share", str(parts), json.dumps(model)]
    pipe = subprocess.PIPE
    process = psutil.Popen(command, stdin=pipe, stdout=pipe)
    try:
        process.stdout.readline()
        yield process
    finally:
        process.communicate()


def mapped_bytes(process: psutil.Process, parts: Path) -> dict[str, float]:
    """Return the MB of files that a process maps, and of memory that is no file's."""
    own = others = private = 0
    for region in process.memory_maps():
        path = Path(region.path)
        if not path.is_relative_to(parts):
            private += region.anonymous
        elif path.parts[len(parts.parts)] == "server-0" or path.stem.endswith("-0"):
            own += path.stat().st_size
        else:
            others += path.stat().st_size
    return {
        "own files, MB": own / 1e6,
        "other files, MB": others / 1e6,
        "memory, MB": private / 1e6,
    }


def measure(parts: Path, is_typed: bool) -> dict[str, dict[str, float]]:
    """Measure a server and ranks of each model that fits the graph."""
    with running_server(parts) as process:
        measured = {"server": mapped_bytes(process, parts)}
    for side, model in MODELS.items():
        if (model["name"] == "rgcn") == is_typed:
            with running_rank(parts, model) as process:
                measured[side] = mapped_bytes(process, parts)
    return measured


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--presets", default="arxiv-like,mag-like")
    parser.add_argument("--scale", type=float, default=1.0, help="of the largest size")
    parser.add_argument("--servers", type=positive, default=16)
    options = parser.parse_args(arguments)
    results = Results("server-share", options.out)
    for preset in options.presets.split(","):
        nodes, others, facts = [], dict[str, list[float]](), list[tuple[str, str, float]]()
        for size in SIZES:
            with tempfile.TemporaryDirectory(dir=options.out) as name:
                made = make(preset, Path(name, "graph"), scale=options.scale * size)
                graph = GraphDirectory.open(made, check="shapes")
                parts, schema = Path(name, "parts").resolve(), graph.schema
                partition_graph(graph, parts, options.servers, "random", topology="partitioned")
                nbytes = sum(path.stat().st_size for path in graph.path.rglob("*.npy"))
                measured = measure(parts, len(schema.node_types) > 1)
            nodes.append(sum(kind.count for kind in schema.node_types.values()))
            facts = [
                ("graph", "nodes", nodes[-1]),
                ("graph", "MB a server", nbytes / options.servers / 1e6),
            ]
            for side, values in measured.items():
                others.setdefault(side, []).append(values["other files, MB"] * 1e6)
                total = values["own files, MB"] + values["other files, MB"]
                values["share"] = total * 1e6 * options.servers / nbytes
                facts += [(side, key, value) for key, value in values.items()]
        for side, by_size in others.items():
            facts.append((side, "bytes a node", float(np.polyfit(nodes, by_size, 1)[0])))
        results.add(f"{preset} x {options.scale:g}, {options.servers} servers", {}, facts=facts)
    return 0


if __name__ == "__main__":
    if len(sys.argv) == 3 and not sys.argv[1].startswith("-"):
        run_rank(Path(sys.argv[1]), json.loads(sys.argv[2]))
        sys.exit(0)
    sys.exit(main())
