"""Memory of every process of a run, fitted to nodes, edges, relations and servers.

usage: python -m benchmarks.memory_of_processes --out DIR [--engine zero_hop] [--nodes 1000000]

Graphs have features of 64 bytes and random edges. Around a run with ``--nodes`` nodes, ten edges a
node, one relation and four servers on this machine, one number at a time is doubled and quadrupled.
Each graph is trained for two epochs of five iterations, with evaluation on the whole validation
split (a tenth of the nodes) and without; the model is GraphSAGE, and R-GCN as relations grow in
number. A cell is evaluation ``on`` or ``off``, and a side a kind of process: the launcher before it
forks the others ("alone") and beside them, the largest server, the largest rank. Lines have the
most MiB that it held at once, in the first run, and what a node, an edge, a relation and a server
add in bytes: the slope of a line through three runs, with the largest distance of a run from that
line, in MiB. Pages of mapped files are left out, and a page that a fork left to several processes
is shared among them.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks.processes import HOPPER
from benchmarks.rounds import Results, make_parser, positive
from hopper.graph import GraphDirectory
from hopper.partition import partition_graph

DEGREE, WIDTH, CLASSES, FACTORS = 10, 16, 16, (1, 2, 4)
ALONE = "launcher, alone"
KINDS = (ALONE, "launcher", "server", "rank")
_POLL_SECONDS = 0.1


class Size(NamedTuple):
    """What a run's memory may grow with."""

    node: int
    edge: int
    relation: int = 1
    server: int = 4


def divide(size: Size, work: Path) -> Path:
    """Make and divide a graph, unless that was done."""
    parts = work / "-".join(map(str, size))
    if parts.exists():
        return parts
    generator, graph = np.random.default_rng(0), work / f"{parts.name}-graph"
    shape = (2, size.edge // size.relation)
    edges = {
        ("node", f"to{number}", "node"): generator.integers(0, size.node, shape)
        for number in range(size.relation)
    }
    features = generator.standard_normal((size.node, WIDTH), np.float32)
    order, tenth = generator.permutation(size.node), size.node // 10
    GraphDirectory.from_arrays(
        graph,
        edges,
        {"node": features},
        {"node": np.arange(size.node) % CLASSES},
        {"train": order[:tenth], "val": order[tenth : 2 * tenth]},
    )
    partition_graph(GraphDirectory.open(graph), parts, size.server, "random")
    return parts


def train(size: Size, model: str, engine: str, is_evaluated: bool, work: Path) -> dict[str, float]:
    """Train; return the most MiB of each kind of process."""
    run = Path(tempfile.mkdtemp(dir=work))
    words = [f"--data.partitioned={divide(size, work)}", f"--train.run_dir={run}"]
    words += [f"--model.name={model}", "--model.layers=2"]
    words += ["--model.hidden=16", "--sampler.fanouts=[10, 10]", "--train.batch_size=1000"]
    words += ["--train.epochs=2", "--train.iterations_per_epoch=5", f"--train.engine={engine}"]
    words += [f"--train.evaluate_every={int(is_evaluated)}", "--data.verify=off"]
    (work / "empty.toml").touch()
    largest: dict[str, int] = defaultdict(int)
    with (run / "log").open("wb") as log:
        process = psutil.Popen(
            [*HOPPER, "train", str(work / "empty.toml"), *words], stdout=log, stderr=log
        )
        while process.poll() is None:
            with suppress(psutil.Error, OSError):
                children = process.children(recursive=True)
                own = {"launcher" if children else ALONE: _own_bytes(process.pid)}
                for child in children:
                    kind = _kind(child.pid)
                    own[kind] = max(own.get(kind, 0), _own_bytes(child.pid))
                for kind, size in own.items():
                    largest[kind] = max(largest[kind], size)
            time.sleep(_POLL_SECONDS)
    if process.returncode:
        raise SystemExit((run / "log").read_text()[-600:])
    return {kind: largest[kind] / 2**20 for kind in KINDS}


def _kind(process: int) -> str:
    """Tell what a child is; what a server prints has a folder of its own."""
    is_server = Path(os.readlink(f"/proc/{process}/fd/1")).parent.name == "servers"
    return "server" if is_server else "rank"


def _own_bytes(process: int) -> int:
    """Return the bytes that no file backs, with its share of pages that a fork left to several."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss_Anon:"):
            return 1024 * int(line.split()[1])
    return 0


def fit(sizes: Sequence[int], mib: Sequence[float]) -> tuple[float, float]:
    """Return the bytes that one more adds, and the largest distance from the line, in MiB."""
    line = np.polynomial.Polynomial.fit(sizes, mib, 1)
    return float(line.deriv()(0)) * 2**20, float(np.abs(line(np.array(sizes)) - mib).max())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--engine", default="zero_hop")
    parser.add_argument("--nodes", type=positive, default=1_000_000)
    options = parser.parse_args(arguments)
    results = Results("memory-of-processes", options.out)
    base = Size(options.nodes, DEGREE * options.nodes)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        for is_evaluated in (False, True):
            runs = {
                axis: [
                    train(
                        base._replace(**{axis: getattr(base, axis) * factor}),
                        "rgcn" if axis == "relation" else "sage",
                        options.engine, is_evaluated, Path(folder),
                    )
                    for factor in FACTORS
                ]
                for axis in Size._fields
            }  # fmt: skip
            facts = [(kind, "MiB", runs["node"][0][kind]) for kind in KINDS]
            for axis, measured in runs.items():
                sizes = [getattr(base, axis) * factor for factor in FACTORS]
                for kind in KINDS:
                    slope, off = fit(sizes, [run[kind] for run in measured])
                    facts += [
                        (kind, f"bytes of one more {axis}", slope),
                        (kind, f"off, {axis}, MiB", off),
                    ]
            cell = f"{options.engine}, evaluation {'on' if is_evaluated else 'off'}"
            results.add(cell, {}, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
