"""Train from Python, look at what each epoch cost, and predict with the trained model alone.

    python examples/train_from_python.py [FOLDER]

makes a small graph like ogbn-arxiv, divides it over two servers and trains GraphSAGE on both. It
then loads the model, shows the micrograph of one node, and scores the test nodes again, from all
neighbours and without servers and ranks. docs/reference/python-api.md explains the names.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import hopper
from hopper.graph.synthesise import make


def train(parts: hopper.PartitionedGraph, folder: Path) -> hopper.RunResult:
    """Train on this machine, and print what each epoch cost."""
    result = hopper.train(
        {
            "data": {"partitioned": str(parts.path)},
            "model": {"name": "sage", "layers": 2, "hidden": 16, "dropout": 0.2},
            "sampler": {"fanouts": [5, 3]},
            "train": {
                "engine": "zero_hop",
                "batch_size": 32,
                "learning_rate": 0.01,
                "run_dir": str(folder / "run"),
            },
        },
        ["--train.epochs", "4"],
    )
    for epoch in result.epochs:
        sent = ", ".join(
            f"{cause} {count / 1e6:.2f} MB" for cause, count in epoch.bytes.items() if count
        )
        print(f"epoch {epoch.epoch}: loss {epoch.loss:.3f} in {epoch.seconds:.2f} s; sent {sent}")
    return result


def logits(model: nn.Module, graph: hopper.GraphDirectory, subgraph: hopper.Subgraph) -> Tensor:
    """[roots, classes]: the model's logits of a subgraph's roots."""
    node_type = subgraph.target
    original_ids = subgraph.original_ids[node_type][subgraph.nodes[node_type]]
    rows = torch.from_numpy(graph.features(node_type)[original_ids])
    with torch.no_grad():
        out: Tensor = model(subgraph.blocks(), rows)
    return out


def predict(
    result: hopper.RunResult,
    graph: hopper.GraphDirectory,
    parts: hopper.PartitionedGraph,
    nodes: NDArray[np.int64],
) -> NDArray[np.int64]:
    """[n]: the class of each node, from all of its neighbours.

    Parameters
    ----------
    nodes: [n] int64 original ids.
    """
    config = hopper.make_config(result.config.model_dump(), ["--sampler.fanouts=[-1, -1]"])
    sampler = hopper.make_sampler(hopper.Request(config, parts))
    roots = parts.global_ids(sampler.target)[nodes]
    subgraph = sampler.sample(roots, epoch=0, iteration=0)
    return logits(result.load_model(), graph, subgraph).argmax(-1).numpy()


def main(folder: Path) -> None:
    """Make a graph, divide it, train, show one micrograph and predict."""
    graph = hopper.GraphDirectory.open(make("arxiv-like", folder / "graph", scale=0.005))
    parts = hopper.divide_graph(graph, folder / "parts", servers=2)
    try:
        result = train(parts, folder)
    except hopper.HopperError as error:
        sys.exit(f"not trained: {error}")
    score = result.metrics[result.metric]["test"]
    print(f"test {result.metric} of the run {score:.6f}, best epoch {result.best_epoch}")

    test = graph.split("test")
    micrograph = hopper.Micrograph(
        hopper.make_sampler(hopper.Request(result.config, parts)),
        root=int(parts.global_ids(graph.schema.target_type())[test[0]]),
        epoch=0,
        iteration=0,
    )
    print(micrograph.text(parts.book))
    print("logits", logits(result.load_model(), graph, micrograph.subgraph).shape)

    labels = graph.labels(graph.schema.target_type())[test]
    correct = predict(result, graph, parts, test) == labels
    print(f"test accuracy of the loaded model {correct.mean():.6f}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
