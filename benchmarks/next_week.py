"""A graph that has grown by a tenth: divided like last week's, and anew; and training that goes on.

usage: python -m benchmarks.next_week --out DIR [--rounds 5] [PRESET:SCALE ...]

A preset is the graph of this week; a tenth of its nodes, drawn at random, and their edges are new
since last week. Last week's graph is divided by METIS over 4 servers, and trained on. Then this
week's is divided by ``--like`` and by METIS anew (seconds, share of edges cut, share of known nodes
on another server), and trained for 2 epochs from last week's model, for 2 epochs anew, and for as
many as last week's and these together. A round is a seed. Accuracies are those of the test split.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import hopper
from benchmarks.rounds import Results, make_parser
from hopper.graph import GraphDirectory
from hopper.graph.synthesise import make
from hopper.partition import partition_graph

DEFAULT = ["arxiv-like:0.2", "products-like:0.02"]
SERVERS, BEFORE, MORE = 4, 6, 2
"""epochs of last week, and of this week"""


def renumber(graph: GraphDirectory, out: Path, kept: NDArray[np.int64]) -> GraphDirectory:
    """Write the graph of some nodes in this order, and of the edges between them."""
    (node_type,), (relation,) = graph.schema.node_types, graph.schema.relations
    topology, count = graph.topology(relation), graph.schema.node_types[node_type].count
    row = np.full(count, -1)
    row[kept] = np.arange(kept.size)
    ends = np.stack((topology.indices, np.repeat(np.arange(count), np.diff(topology.indptr))))
    ends = row[ends]
    splits = {name: row[graph.split(name)] for name in graph.schema.splits}
    return GraphDirectory.from_arrays(
        out,
        ends[:, (ends >= 0).all(0)],
        np.asarray(graph.features(node_type))[kept],
        np.asarray(graph.labels(node_type))[kept],
        {name: rows[rows >= 0] for name, rows in splits.items()},
        counts=kept.size,
    )


def homes(parts: Path, known: int) -> NDArray[np.int64]:
    """Return the servers of the known nodes, which have the first ids."""
    graph = hopper.PartitionedGraph.open(parts)
    return graph.book.home("node", np.asarray(graph.global_ids("node")[:known], np.int64))


def train(parts: Path, run: Path, seed: int, epochs: int, before: Path | None = None) -> float:
    """Train on four ranks; return the accuracy on the test split."""
    settings = {
        "engine": "zero_hop",
        "epochs": epochs,
        "batch_size": 128,
        "learning_rate": 0.005,
        "evaluate_every": epochs,
        "seed": seed,
        "run_dir": str(run),
        "init_from": str(before or ""),
    }
    values = {
        "data": {"partitioned": str(parts)},
        "model": {"name": "sage", "layers": 2, "hidden": 64},
        "sampler": {"fanouts": [10, 10]},
        "train": settings,
    }
    return float(hopper.train(values).summary["scores"]["test"]["accuracy"])


def measure(preset: str, scale: float, seed: int) -> dict[str, dict[str, float]]:
    """Return the values of each side by measure, for one seed."""
    with tempfile.TemporaryDirectory(prefix="next-week-") as folder:
        work = Path(folder)
        make(preset, work / "whole", scale=scale, seed=seed)
        whole = GraphDirectory.open(work / "whole")
        (kind,) = whole.schema.node_types.values()
        nodes = np.random.default_rng(seed).permutation(kind.count)
        known = kind.count - kind.count // 11
        old = renumber(whole, work / "old", nodes[:known])
        now = renumber(whole, work / "now", nodes)
        partition_graph(old, work / "old-parts", SERVERS, "metis", seed)
        before = homes(work / "old-parts", known)
        found: dict[str, dict[str, float]] = {}
        for side, method, options in (
            ("like", "like", {"parts": work / "old-parts"}),
            ("anew", "metis", {}),
        ):
            parts, begun = work / side, time.perf_counter()
            partition_graph(now, parts, SERVERS, method, seed, method_options=options)
            found[side] = {
                "seconds": time.perf_counter() - begun,
                "edge cut": json.loads((parts / "partition.json").read_text())["edge_cut"],
                "moved": float((homes(parts, known) != before).mean()),
            }
        run = work / "last week"
        train(work / "old-parts", run, seed, BEFORE)
        found[f"goes on, {MORE} epochs"] = {
            "test accuracy": train(work / "like", work / "on", seed, MORE, run)
        }
        for epochs in (MORE, BEFORE + MORE):
            accuracy = train(work / "anew", work / f"run-{epochs}", seed, epochs)
            found[f"anew, {epochs} epochs"] = {"test accuracy": accuracy}
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("graphs", nargs="*", metavar="PRESET:SCALE", default=DEFAULT)
    options = parser.parse_args(arguments)
    results = Results("next-week", options.out)
    for text in options.graphs:
        preset, _, scale = text.partition(":")
        rounds = [measure(preset, float(scale), seed) for seed in range(options.rounds)]
        measured = {
            side: {
                name: np.array([[found[side][name]] for found in rounds])
                for name in rounds[0][side]
            }
            for side in rounds[0]
        }
        results.add(text, measured, {"like": ["anew"]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
