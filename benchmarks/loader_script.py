"""A training loop of one's own under Hopper's loaders, which benchmarks/loaders.py starts.

usage: train.script = "loader_script.py blocks|pyg home|random" or "loader_script.py stores WORKERS"

"blocks" is ``hopper.loader`` with the model of examples/pyg_model.py, "pyg" is
``hopper.pyg.NeighborLoader`` with the same layers in PyG's idiom, "stores" is PyG's own loader over
Hopper's stores, with batches of each rank's share of the roots. The run's folder gets a summary
with, by epoch, the seconds, the loss, and by rank the bytes that its host has sent and its resident
MiB.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.loader import NodeLoader

import hopper
from examples.pyg_model import PygSage
from hopper.config import Config, load_config
from hopper.config.loading import CONFIG_VARIABLE
from hopper.pyg import FeatureStore, GraphStore, NeighborLoader, Sampler
from hopper.train.meter import interface_bytes
from hopper.train.results import SUMMARY_FILE


class Trimmed(torch.nn.Module):
    """The same layers on PyG's batches, each for the nodes that later layers read.

    PyG's ``trim_to_layer`` would have the first layer compute all nodes that were found.
    """

    def __init__(self, sage: PygSage) -> None:
        super().__init__()
        self.convs = sage.convs

    def forward(self, batch: Any) -> Tensor:
        """[roots, out]: logits."""
        x, edges = batch.x, batch.edge_index
        found = zip(batch.num_sampled_nodes[:0:-1], batch.num_sampled_edges[::-1], strict=True)
        for conv, (nodes, last_edges) in zip(self.convs, found, strict=True):
            x = conv((x, x[: len(x) - nodes]), edges)
            edges = edges[:, : edges.shape[1] - last_edges]
            x = x if conv is self.convs[-1] else x.relu()
        return x


def train(config: Config, loader: Any, model: torch.nn.Module) -> list[dict[str, Any]]:
    """Train all epochs, and return their records, the same on all ranks."""
    replicated = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.train.learning_rate)
    epochs = []
    for epoch in range(config.train.epochs):
        dist.barrier()
        sent, total, start = interface_bytes(config.cluster.interface), 0.0, time.perf_counter()
        for batch in loader:
            optimizer.zero_grad()
            if isinstance(batch, hopper.Batch):
                assert batch.labels is not None
                out, labels = replicated(batch.blocks(), batch.x), batch.labels
            else:
                out, labels = replicated(batch), batch.y[: batch.batch_size]
            scale = batch.loss_scale if hasattr(batch, "loss_scale") else 1 / len(labels)
            loss = cross_entropy(out, labels, reduction="sum") * scale
            loss.backward()
            optimizer.step()
            total += loss.item()
        seconds = time.perf_counter() - start
        dist.barrier()
        sent = interface_bytes(config.cluster.interface) - sent
        resident = psutil.Process().memory_info().rss / 2**20
        mine = torch.tensor([seconds, total, sent, resident], dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mine)
        each_seconds, each_loss, each_bytes, each_rss = torch.stack(everyone).T.tolist()
        epochs.append(
            {
                "epoch": epoch,
                "seconds": max(each_seconds),
                "iterations": len(loader),
                "loss": fmean(each_loss) / len(loader),
                "nic_bytes": each_bytes,
                "rss_mib": each_rss,
            }
        )
    return epochs


def open_stores(graph: hopper.ConnectedGraph, config: Config, workers: int) -> Any:
    """Return PyG's loader over Hopper's stores, of as many batches on each rank."""
    roots = graph.graph.split("train")[graph.rank :: graph.world].copy()
    fewest = graph.graph.split("train").size // graph.world
    return NodeLoader(
        (FeatureStore(graph), GraphStore(graph)),
        node_sampler=Sampler(graph, config.sampler.fanouts),
        input_nodes=torch.from_numpy(roots[:fewest]),
        batch_size=config.train.batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def main(kind: str, placement: Any) -> None:
    """Train as the launcher's configuration says, and write what was measured."""
    config = load_config(os.environ[CONFIG_VARIABLE])
    seed, fanouts, batch_size = config.train.seed, config.sampler.fanouts, config.train.batch_size
    dist.init_process_group("gloo")
    how: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "placement": placement}
    how["pipeline"] = config.pipeline.model_dump()
    with hopper.connect() as graph:
        if kind == "pyg":
            loader: Any = NeighborLoader(graph, fanouts, "train", shuffle=True, **how)
        elif kind == "stores":
            loader = open_stores(graph, config, int(placement))
        else:
            loader = hopper.loader(graph, fanouts, expansion=config.sampler.expansion, **how)
        target = graph.graph.schema.target_type()
        width = graph.graph.schema.node_types[target].feature_dim
        classes = graph.graph.schema.labels[target].classes
        assert width is not None
        torch.manual_seed(seed)
        model = PygSage(width, classes, len(fanouts), config.model.hidden, 1, 0.0)
        with loader if isinstance(loader, hopper.Loader) else nullcontext():
            epochs = train(config, loader, model if kind == "blocks" else Trimmed(model))
    if dist.get_rank() == 0:
        Path(config.train.run_dir, SUMMARY_FILE).write_text(json.dumps({"epochs": epochs}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
