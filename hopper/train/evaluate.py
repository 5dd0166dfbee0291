"""Validation and test scores: what every way of scoring a split shares.

Scores are over full neighbourhoods. No sampling, no dropout.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster
from hopper.engines import Request
from hopper.engines.accumulate import join_rows
from hopper.features import PartitionedRows
from hopper.hetero.learnable import LeafRows, LearnableRows
from hopper.models import Objective

# Input rows of one pass, in bytes: bounds the memory of a chunk.
_CHUNK_BYTES = 256 << 20
# Roots of one pass where whole k-hop neighbourhoods are needed.
ROOTS_PER_PASS = 256
ROWS_PER_PASS = 200_000


@dataclass(frozen=True)
class Scene:
    """What every evaluator works with.

    Attributes
    ----------
    dtype: of the model's parameters.
    """

    request: Request
    cluster: Cluster
    rows: PartitionedRows
    objective: Objective
    dtype: torch.dtype
    learnable: LearnableRows


class Evaluator(ABC):
    """Scores a model on a split, on all ranks together."""

    def __init__(self, scene: Scene) -> None:
        self._graph = scene.request.graph
        self._reads = scene.request.reads
        self._cluster = scene.cluster
        self._placement = self._graph.placement(scene.cluster.ranks_per_server)
        self._rows = scene.rows
        self.objective = scene.objective
        self._dtype = scene.dtype
        self.learnable = scene.learnable
        self._learned = LeafRows({}, {})
        """of the pass under way"""
        schema = self._graph.schema
        self._target = schema.target_type()
        self._classes = schema.labels[self._target].classes

    def has_split(self, split: str) -> bool:
        """Whether the graph has nodes in that split."""
        return bool(self._graph.schema.splits.get(split))

    @torch.no_grad()
    def score(self, model: torch.nn.Module, split: str) -> float:
        """The metric of a split, equal on every rank.

        Raises
        ------
        ClusterError: a rank or server was lost, or a deadline passed.
        """
        was_training = model.training
        model.eval()
        try:
            sums = self._sums(*self.logits(model, split))
        finally:
            model.train(was_training)
        self._cluster.all_reduce(sums, "control", f"adding up the {split} score")
        return self.objective.metric_from_sums(sums)

    def _scored(self, split: str) -> NDArray[np.int64]:
        """[n] int64 global ids, ascending: the nodes of a split."""
        return np.sort(self._graph.global_ids(self._target)[self._graph.split(split)])

    @abstractmethod
    def logits(self, model: torch.nn.Module, split: str) -> tuple[NDArray[np.int64], Tensor]:
        """This rank's share of a split: [n] int64 global ids and [n, classes]."""

    def _sums(self, ids: NDArray[np.int64], logits: Tensor) -> Tensor:
        stored = torch.from_numpy(self._rows.gather("labels", self._target, ids))
        return self.objective.metric_sums(logits.cpu(), self.objective.shaped(stored))

    def _rows_per_chunk(self, width: int) -> int:
        return max(1, _CHUNK_BYTES // (width * self._dtype.itemsize))

    def _read_learned(self, wanted: Mapping[str, Sequence[NDArray[np.int64]]]) -> None:
        """Read the learnable rows of a pass, if there are any: by name of a type, of nodes in
        groups; collective."""
        self._learned = self.learnable.read(wanted, "evaluation")

    def _inputs(self, node_type: str, ids: NDArray[np.int64]) -> Tensor:
        """[n, width]: features of distinct nodes and, behind them, their learnable rows."""
        own, features = self._reads.inputs[node_type], None
        device = self._cluster.device
        if own.features and device.type == "cpu":
            features = self._rows.whole(own.node_type, ids).to(self._dtype)
        elif own.features:
            features = self._rows.whole(own.node_type, ids).gathered().to(device).to(self._dtype)
        return join_rows(self._reads, node_type, ids, features, self._learned)
