"""Train a user-defined relational model on a typed graph whose relations are divided over servers.

    python examples/heterogeneous.py [FOLDER]

makes a graph like ogbn-mag, of a hundredth of its size, and divides whole relations over two
servers. It shows which server has which relations, trains `GatedAggregation` under
relation-aggregation-first, and reads rows.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np

import hopper
from hopper.graph.synthesise import make

# The folder of `gated_aggregation`, for this process and, through PYTHONPATH, for the ranks.
HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])


def main(folder: Path) -> float:
    """Make a graph, divide it and train; return the test accuracy."""
    graph = hopper.GraphDirectory.open(make("mag-like", folder / "graph", scale=0.01))
    parts = hopper.divide_graph(graph, folder / "parts", servers=2, method="meta", layers=2)
    for server, partition in enumerate(parts.partitions):
        print(f"server {server} aggregates {', '.join(map(str, partition.roots))}")
    result = hopper.train(
        {
            "data": {"partitioned": str(parts.path)},
            "model": {
                "name": "hgnn",
                "aggregate": "gated_aggregation:GatedAggregation",
                "combine": "mean",
                "layers": 2,
                "hidden": 32,
            },
            "sampler": {"fanouts": [10, 5]},
            "train": {
                "engine": "raf",
                "batch_size": 256,
                "epochs": 5,
                "learning_rate": 0.01,
                "run_dir": str(folder / "run"),
            },
            "learnable": {"learning_rate": 0.05},
        }
    )
    accuracy = result.metrics["accuracy"]["test"]
    rows = hopper.LocalRows(parts, server=0).gather("features", "paper", np.array([0, 1]))
    print(f"test accuracy {accuracy:.3f}; features of two papers: {rows.shape} {rows.dtype}")
    return accuracy


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
