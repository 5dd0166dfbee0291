"""Training a group: forward and backward over merged micrographs, gradients accumulated.

The loss is the *sum* of root losses divided by the size of the global batch (design.md,
invariant 2), so groups, passes and ranks can be added in any split without changing the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.features import FeatureSource, RowKind
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.packed_model import PackedModel
from hopper.models import Objective
from hopper.run_log import RunLog


class GroupTrainer:
    """Samples, gathers and trains groups of roots of one node type.

    Parameters
    ----------
    micro_batch: roots of one forward pass at most; larger groups take several passes.
    """

    def __init__(
        self,
        sampler: NeighborSampler,
        log: RunLog,
        objective: Objective,
        micro_batch: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._sampler = sampler
        self._log = log
        self.objective = objective
        self._micro_batch = micro_batch
        self._dtype = dtype
        self._device = device

    @property
    def node_type(self) -> str:
        """The node type of roots and input rows."""
        return self._sampler.target

    def sample(self, roots: NDArray[np.int64], epoch: int, iteration: int) -> list[Subgraph]:
        """The subgraphs of a group, one per pass; none for an empty group."""
        with self._log.stage("sample", roots=int(roots.size)):
            return [self._sampler.sample(part, epoch, iteration) for part in self._passes(roots)]

    def accumulate(
        self, packed: PackedModel, subgraphs: list[Subgraph], rows: FeatureSource, batch_size: int
    ) -> None:
        """Add a group's gradient and loss, divided by ``batch_size``, to the packed model."""
        for subgraph in subgraphs:
            with self._log.stage("gather", rows=int(subgraph.nodes[self.node_type].size)):
                nodes = subgraph.nodes[self.node_type]
                inputs = self._read(rows, "features", nodes).to(self._dtype)
                labels = self.objective.shaped(
                    self._read(rows, "labels", nodes[: subgraph.num_roots])
                )
            with self._log.stage("compute", roots=subgraph.num_roots):
                blocks = subgraph.blocks(self._device)
                logits = packed.module(blocks, inputs)
                loss = self.objective.loss_sum(logits, labels) / batch_size
                loss.backward()
                packed.loss += loss.detach()

    def _passes(self, roots: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        for start in range(0, roots.size, self._micro_batch):
            yield roots[start : start + self._micro_batch]

    def _read(self, rows: FeatureSource, kind: RowKind, ids: NDArray[np.int64]) -> torch.Tensor:
        found = torch.from_numpy(rows.gather(kind, self.node_type, ids))
        return found.to(self._device, non_blocking=True)
