"""What computes a batch's layers, forward and backward; and Hopper's two ways of doing so."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

from torch import Tensor, nn

from benchmarks.baselines.by_relation import split_relations
from benchmarks.layers.batches import Workload
from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.graph.block import TypedBlocks
from hopper.micrograph.subgraph import Subgraph
from hopper.models.relational import HGNN

BY_RELATION: Final = "relation by relation"
MERGED: Final = "merged"


class LayerSide(ABC):
    """One implementation of a model's layers; ``parameters`` are what gradients are made for."""

    def __init__(self, work: Workload, parameters: nn.Module) -> None:
        self.work = work
        self.parameters = parameters

    @abstractmethod
    def prepare(self, batch: int, subgraph: Subgraph) -> Any:
        """Return what the host makes of a sampled batch before the device computes it."""

    @abstractmethod
    def forward(self, batch: int, prepared: Any) -> Tensor:
        """Return [roots, classes]: the logits, from what :meth:`prepare` made."""

    def compute(self, batch: int, prepared: Any) -> Tensor:
        """Go forward and backward. Return the logits, [roots, classes], without their graph."""
        self.parameters.zero_grad(set_to_none=True)
        logits = self.forward(batch, prepared)
        self.work.loss(logits, batch).backward()
        return logits.detach()

    def step(self, batch: int) -> Tensor:
        """Prepare and compute a sampled batch. Return its logits."""
        return self.compute(batch, self.prepare(batch, self.work.batches[batch]))


class HopperSide(LayerSide):
    """Hopper's layers, relation by relation or all relations of a layer at once (``merge``)."""

    def __init__(self, work: Workload, *, merge: bool) -> None:
        model = make_model(Request(work.config, work.graph)).to(work.device)
        assert isinstance(model, HGNN)
        if not merge:
            split_relations(model)
        super().__init__(work, model)
        self.model, self.merge = model, merge

    def prepare(self, batch: int, subgraph: Subgraph) -> list[TypedBlocks]:
        """Return new blocks of every hop, in which nothing of an earlier pass is prepared."""
        blocks = subgraph.typed_blocks(self.work.device)
        if self.merge:
            self.model.lay_out(blocks)
        return blocks

    def forward(self, batch: int, prepared: list[TypedBlocks]) -> Tensor:
        """Compute the logits by Hopper's layers."""
        return self.logits(dict(self.work.rows[batch]), prepared)

    def logits(self, h: dict[str, Tensor], blocks: Sequence[TypedBlocks]) -> Tensor:
        """Compute the logits of rows by type, [nodes, hidden]."""
        for index, hop in enumerate(blocks):
            h = self.model.relation_layer(index)(hop, h)
        logits: Tensor = self.model.head(h[self.model.target])
        return logits
