"""The sampled batches that all sides compute: their edges, their rows and their labels."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.rounds import make_parser
from hopper.config import Config, make_config
from hopper.device.choice import choose_device
from hopper.engines import Request
from hopper.engines.assemble import make_sampler, make_schedule
from hopper.micrograph.subgraph import Subgraph
from hopper.partition import PartitionedGraph


class Workload:
    """A partitioned graph with some of an epoch's batches, sampled.

    Rows of nodes are as wide as hidden rows, so that input projections, which all sides would
    share, are left out. Rows and labels are drawn at random.

    Parameters
    ----------
    config: what names the model and draws batches.
    batches: how many of an epoch's; 0 = all.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        config: Config,
        batches: int,
        device: torch.device,
    ) -> None:
        self.graph, self.config, self.device = graph, config, device
        self.hidden = config.model.hidden
        self.target = graph.schema.target_type()
        self.classes = graph.schema.labels[self.target].classes
        request = Request(config, graph)
        self._sampler, schedule = make_sampler(request), make_schedule(request, 1)
        count = min(batches or schedule.iterations, schedule.iterations)
        self._roots = [schedule.batch(0, index).roots for index in range(count)]
        self.batches = [self.sample(index) for index in range(count)]
        generator = torch.Generator().manual_seed(0)
        self.rows = [
            {
                name: torch.randn(len(ids), self.hidden, generator=generator).to(device)
                for name, ids in batch.nodes.items()
            }
            for batch in self.batches
        ]
        self.labels = [
            torch.randint(self.classes, (batch.num_roots,), generator=generator).to(device)
            for batch in self.batches
        ]

    def sample(self, batch: int) -> Subgraph:
        """Sample a batch by its number; it is the same each time."""
        return self._sampler.sample(self._roots[batch], 0, batch)

    def loss(self, logits: Tensor, batch: int) -> Tensor:
        """Return the sum of the roots' cross-entropies, of [roots, classes]."""
        return functional.cross_entropy(logits, self.labels[batch], reduction="sum")

    def wait_for_device(self) -> None:
        """Wait until all that was launched on the device has been computed."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def describe(self) -> dict[str, Any]:
        """Return the graph and its batches in numbers."""
        schema = self.graph.schema
        return {
            "graph": schema.name,
            "relations": len(schema.relations),
            "node_types": len(schema.node_types),
            "batches": len(self.batches),
            "roots": [batch.num_roots for batch in self.batches],
            "edges": [batch.num_edges for batch in self.batches],
        }


def open_workload(options: argparse.Namespace, path: Path, model: str) -> Workload:
    """Open a graph for two layers of a model; R-GCN has no root weight, as PyG's is compared."""
    values: dict[str, Any] = {
        "data": {"partitioned": str(path)},
        "model": {"name": model, "layers": 2, "hidden": options.hidden},
        "sampler": {"fanouts": [25, 20]},
        "train": {"engine": "model_centric", "batch_size": 1024},
    }
    if model == "rgcn":
        values["model"]["root_weight"] = False
    config = make_config(values, [])
    return Workload(PartitionedGraph.open(path), config, options.batches, options.device)


def parse(
    arguments: Sequence[str] | None, doc: str | None, models: str, batches: int
) -> tuple[argparse.Namespace, list[tuple[Path, str]]]:
    """Parse the options of a script about layers. Return them, and every graph with every model."""
    parser = make_parser(doc)
    parser.add_argument("partitioned", type=Path, nargs="+")
    parser.add_argument("--models", default=models)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batches", type=int, default=batches, help="of a graph; 0: a whole epoch")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    options.device = choose_device(options.device)
    return options, list(product(options.partitioned, options.models.split(",")))
