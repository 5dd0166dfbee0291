"""Scores of models of typed graphs: every scored node's whole neighbourhood, as the model reads it.

No sampling, no dropout. Each rank scores the nodes of its own server, a few at a time.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.hetero.learnable import FetchedRows
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.train.evaluate import ROOTS_PER_PASS, NeighbourhoodEvaluator


class TypedEvaluator(NeighbourhoodEvaluator):
    """Scores on graphs of several node types; parameters as those of its base."""

    _learned: FetchedRows | None = None

    @cached_property
    def _sampler(self) -> NeighborSampler:
        schema = self._graph.schema
        return NeighborSampler(
            {relation: self._graph.topology(relation) for relation in schema.relations},
            {each: self._graph.original_ids(each) for each in schema.node_types},
            self._target,
            [-1] * self._layers,
            seed=0,
        )

    def logits(self, model: torch.nn.Module, split: str) -> tuple[NDArray[np.int64], Tensor]:
        """See :class:`Evaluator`."""
        scored = np.sort(self._graph.global_ids(self._target)[self._graph.split(split)])
        mine = scored[(scored >= self._first) & (scored < self._stop)]
        self._learned = self._fetch_learnable(mine)
        try:
            return mine, self._by_neighbourhoods(mine, self._sampler, model)
        finally:
            self._learned = None

    def _fetch_learnable(self, mine: NDArray[np.int64]) -> FetchedRows | None:
        """All learnable rows that some nodes' neighbourhoods hold, at once: every rank asks once,
        however many passes it makes."""
        if self.learnable is None:
            return None
        counts = {name: self._graph.schema.node_types[name].count for name in self.learnable.types}
        reached = {name: np.zeros(count, np.bool_) for name, count in counts.items()}
        for chunk in np.array_split(mine, -(-mine.size // ROOTS_PER_PASS) or 1):
            nodes = self._sampler.sample(chunk, 0, 0).nodes
            for name, mask in reached.items():
                mask[nodes[name]] = True
        wanted = {name: [np.flatnonzero(mask)] for name, mask in reached.items()}
        return self.learnable.fetch(wanted, "evaluation", gradients=False)

    def _of_subgraph(self, model: torch.nn.Module, subgraph: Subgraph) -> Tensor:
        inputs = {
            node_type: self._rows_of(node_type, nodes)
            for node_type, nodes in subgraph.nodes.items()
            if nodes.size
        }
        found: Tensor = model(subgraph.typed_blocks(self._cluster.device), inputs)
        return found

    def _rows_of(self, node_type: str, nodes: NDArray[np.int64]) -> Tensor:
        if self._learned is not None and node_type in self._learned:
            return self._learned.of(node_type, nodes)
        return self._inputs(node_type, nodes)
