"""Training a group: forward and backward over merged micrographs, gradients accumulated.

The loss is the *sum* of root losses divided by the size of the global batch (design.md,
invariant 2), so groups, passes and ranks can be added in any split without changing the gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.features import FeatureSource, PartitionedRows, PregatheredRows, RowKind
from hopper.graph.block import Block
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.migrate.packed_model import PackedModel
from hopper.models import Objective
from hopper.run_log import RunLog


@dataclass
class Pass:
    """A subgraph with its rows, to be trained on by one model or by several in turn.

    inputs: [nodes, dim] input rows. labels: of the roots, as the objective takes them.
    """

    subgraph: Subgraph
    inputs: torch.Tensor
    labels: torch.Tensor
    _blocks: list[Block] | None = field(default=None, repr=False)

    def blocks(self, device: torch.device, dropout: int | None = None) -> list[Block]:
        """The subgraph's blocks, made once; with another key of dropout masks, if one is given.

        What kernels prepare for a block depends on its edges alone, so it serves every model.
        """
        if self._blocks is None:
            self._blocks = self.subgraph.blocks(device)
        if dropout is None:
            return self._blocks
        keyed = [copy.copy(block) for block in self._blocks]
        for block in keyed:
            block.iteration_key = dropout
        return keyed


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
        self.sampler = sampler
        self._log = log
        self.objective = objective
        self._micro_batch = micro_batch
        self.dtype = dtype
        self._device = device

    @property
    def node_type(self) -> str:
        """The node type of roots and input rows."""
        return self.sampler.target

    def sample(self, roots: NDArray[np.int64], epoch: int, iteration: int) -> list[Subgraph]:
        """The subgraphs of a group, one per pass; none for an empty group."""
        with self._log.stage("sample", roots=int(roots.size)):
            return [self.sampler.sample(part, epoch, iteration) for part in self._passes(roots)]

    def fetched_once(self, rows: PartitionedRows, subgraphs: Sequence[Subgraph]) -> PregatheredRows:
        """Rows for several passes: remote ones are fetched now, each once for all of them."""
        with self._log.stage("gather", operation="pregather"):
            wanted = [subgraph.nodes[self.node_type] for subgraph in subgraphs]
            return PregatheredRows(rows, self.node_type, wanted)

    def accumulate(
        self, packed: PackedModel, subgraphs: list[Subgraph], rows: FeatureSource, batch_size: int
    ) -> None:
        """Add a group's gradient and loss, divided by ``batch_size``, to the packed model."""
        for subgraph in subgraphs:
            self.train(packed, self.read(subgraph, rows), batch_size)

    def read(self, subgraph: Subgraph, rows: FeatureSource) -> Pass:
        """Gather what one pass over a subgraph needs."""
        nodes = subgraph.nodes[self.node_type]
        with self._log.stage("gather", rows=int(nodes.size)):
            inputs = self.read_rows(rows, "features", nodes).to(self.dtype)
            labels = self.read_rows(rows, "labels", nodes[: subgraph.num_roots])
        return Pass(subgraph, inputs, self.objective.shaped(labels))

    def train(
        self, packed: PackedModel, work: Pass, batch_size: int, dropout: int | None = None
    ) -> None:
        """Add a pass's gradient and loss, divided by ``batch_size``, to the packed model.

        Parameters
        ----------
        dropout: uint64 key of the dropout masks; None = that of the subgraph's draws.
        """
        with self._log.stage("compute", roots=work.subgraph.num_roots):
            logits = packed.module(work.blocks(self._device, dropout), work.inputs)
            loss = self.objective.loss_sum(logits, work.labels) / batch_size
            loss.backward()
            packed.loss += loss.detach()

    def _passes(self, roots: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        for start in range(0, roots.size, self._micro_batch):
            yield roots[start : start + self._micro_batch]

    def read_rows(self, rows: FeatureSource, kind: RowKind, ids: NDArray[np.int64]) -> torch.Tensor:
        """[n, ...]: rows of nodes, on the device that trains."""
        found = torch.from_numpy(rows.gather(kind, self.node_type, ids))
        return found.to(self._device, non_blocking=True)
