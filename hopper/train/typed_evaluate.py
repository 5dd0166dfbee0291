"""Scores of models of typed graphs: every scored node's whole neighbourhood, as the model reads it.

No sampling, no dropout. Each rank scores the nodes of its own server, a few at a time.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster
from hopper.features import PartitionedRows
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.models import Objective
from hopper.partition import PartitionedGraph
from hopper.train.evaluate import Evaluator


class TypedEvaluator(Evaluator):
    """Scores on graphs of several node types; parameters as those of its base."""

    def __init__(
        self,
        graph: PartitionedGraph,
        cluster: Cluster,
        rows: PartitionedRows,
        objective: Objective,
        dtype: torch.dtype,
        layers: int,
    ) -> None:
        super().__init__(graph, cluster, rows, objective, dtype, layers)
        schema = graph.schema
        self._sampler = NeighborSampler(
            {relation: graph.topology(relation) for relation in schema.relations},
            {each: graph.original_ids(each) for each in schema.node_types},
            self._target,
            [-1] * layers,
            seed=0,
        )

    def logits(self, model: torch.nn.Module, split: str) -> tuple[NDArray[np.int64], Tensor]:
        """See :class:`Evaluator`."""
        scored = np.sort(self._graph.global_ids(self._target)[self._graph.split(split)])
        mine = scored[(scored >= self._first) & (scored < self._stop)]
        return mine, self._by_neighbourhoods(mine, self._sampler, model)

    def _of_subgraph(self, model: torch.nn.Module, subgraph: Subgraph) -> Tensor:
        inputs = {
            node_type: self._inputs(node_type, nodes)
            for node_type, nodes in subgraph.nodes.items()
            if nodes.size
        }
        found: Tensor = model(subgraph.typed_blocks(self._cluster.device), inputs)
        return found
