"""The sampled batches that all sides compute: their edges, their rows and their labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from hopper.config import Config
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
    graph: where roots and edges come from.
    configs: the configurations without and with ``model.merge``, alike otherwise.
    batches: how many of an epoch's; 0 = all.
    device: where rows and labels lie.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        configs: Mapping[bool, Config],
        batches: int,
        device: torch.device,
    ) -> None:
        self.graph = graph
        self.device = device
        self.configs = configs
        self.hidden = configs[True].model.hidden
        schema = graph.schema
        self.target = schema.target_type()
        self.classes = schema.labels[self.target].classes
        request = Request(configs[True], graph)
        self._sampler, schedule = make_sampler(request), make_schedule(request, 1)
        count = min(batches or schedule.iterations, schedule.iterations)
        self._roots: list[NDArray[np.int64]] = [
            schedule.batch(0, index).roots for index in range(count)
        ]
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
        """Return the sum of the roots' cross-entropies.

        Parameters
        ----------
        logits: [roots, classes].
        """
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
