"""Parts of models and of training as a user may write them, for ranks to import. No tests.

Some of them would spoil a run, and are refused.
"""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from cache_server.draws.spec import Drawn
from hopper.engines import TrainState
from hopper.engines.data_parallel import ModelCentric
from hopper.graph.block import Block, Nodes
from hopper.micrograph.sample import NeighborSampler
from hopper.models import GNN, Layer
from hopper.models.combination import Combination, SumOfRelations
from hopper.models.dropout import EdgeDropout
from hopper.models.layer import SumLayer
from hopper.models.sage import SAGELayer
from hopper.ops import copy_sum, weighted_sum
from hopper.tasks import Decoder
from hopper.train.callbacks import Callback, Running


class Linear(Layer):
    """Multiplies sources by a matrix."""

    reads_destination = False

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim, bias=False)

    def project(self, h_src: Tensor) -> Tensor:
        return self.linear(h_src)


class Dropping(Linear):
    """A mean whose edges are dropped by keys of relation, destination and position."""

    reads_destination = True

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__(in_dim, out_dim)
        self.scale = nn.Linear(in_dim, out_dim)
        self.edges = EdgeDropout(0.4, 0)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        weights = self.edges(block, block.mean_weights(z_src.dtype))
        return torch.sigmoid(self.scale(h_dst)) * weighted_sum(block, z_src, weights)


class DroppingInParts(Dropping):
    """Adds up parts, where a destination's edges lie on several servers."""

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts)).sum(0)


class Bounded(Linear, SumLayer):
    """Bounds its sums, so that sums of parts are not the sum of the whole."""

    def edge_weights(self, block: Block, dtype: torch.dtype) -> Tensor:
        return block.mean_weights(dtype)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        return torch.tanh(super().aggregate(block, z_src, h_dst))


class Smooth(Linear):
    """A smooth maximum. What the parts of a relation yield is not added up."""

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        return torch.log1p(copy_sum(block, z_src.exp()))

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.log1p(sum(torch.expm1(part) for part in parts))


class Gated(Linear):
    """A mean of messages, each times a gate that is computed from the features of its edge.

    A relation whose edges have no features has no gates.
    """

    def __init__(self, in_dim: int, out_dim: int, edge_dim: int = 0) -> None:
        super().__init__(in_dim, out_dim)
        self.edge_dim = edge_dim
        if edge_dim:
            self.edge_linear = nn.Linear(edge_dim, 1)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        weights = block.mean_weights(z_src.dtype)
        if self.edge_dim:
            gates = self.edge_linear(self.edge_features(block, z_src.dtype)).squeeze(1)
            weights = weights * torch.sigmoid(gates)
        return weighted_sum(block, z_src, weights)


class BoundedSum(SumOfRelations):
    """Sums what every relation says, after bounding it."""

    def __init__(self, width: int) -> None:
        super().__init__()

    def partial(self, block: Block, aggregated: Tensor) -> Tensor:
        return torch.tanh(aggregated)


class AttentionOverRelations(Combination):
    """A sum over relations, weighted by a softmax over them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, 1)

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        rows = torch.stack(list(partials), 1)
        return (torch.softmax(self.query(torch.tanh(rows)), 1) * rows).sum(1)


class Prepared(GNN):
    """Rows of the first layer are read whole."""

    def __init__(self, *, in_dim: int, out_dim: int, **_others: Any) -> None:
        super().__init__([SAGELayer(in_dim, out_dim)])

    def prepare(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        return normalize(super().prepare(index, nodes, rows))


class Scaled(SAGELayer):
    """New rows are not linear in those that are read."""

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        return normalize(super().update(h_dst, combined))


class Other(GNN):
    """The first layer does something else than the class that it is derived from."""

    def __init__(self, *, in_dim: int, out_dim: int, **_others: Any) -> None:
        super().__init__([Scaled(in_dim, out_dim)])


class Pairs(ModelCentric):
    """An engine with an option of a type that JSON lacks."""

    spec = dataclasses.replace(ModelCentric.spec, name="pairs")

    def __init__(self, state: TrainState, bounds: tuple[int, int] = (0, 1)) -> None:
        super().__init__(state)
        self.bounds = bounds


class OwnDraw(NeighborSampler):
    """A sampler whose draws servers do not know."""

    def draw(self, *arguments: Any) -> Drawn:
        return super().draw(*arguments)


class Angles:
    """A source of features that are computed: sines and cosines of an id."""

    dtype, dim = "float32", 4

    def __init__(self, *, node_type: str, count: int, server: int) -> None:
        self._step = 2 * np.pi / count

    def read(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        angles = ids[:, None] * self._step * np.array([1, 5])
        return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)


class Strides:
    """Negatives of links at fixed distances from their ends; ``beyond`` leads past all nodes."""

    def __init__(self, *, counts: Mapping[str, int], seed: int, beyond: int = 0) -> None:
        self._counts, self._seed, self._beyond = counts, seed, beyond

    def draw(
        self,
        heads: Any,
        tails: Any,
        relation: Any,
        side: str,
        count: int,
        epoch: int,
        iteration: int,
    ) -> NDArray[np.int64]:
        nodes = self._counts[relation.dst if side == "tail" else relation.src]
        first = 7 * heads + 3 * tails + 5 * epoch + 11 * iteration + self._seed
        return (first[:, None] + 13 * np.arange(count)) % nodes + self._beyond


class Sum(Decoder):
    """Adds a linear layer of both rows."""

    def __init__(self, *, width: int, relations: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, outputs)

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        return self.linear(heads + tails)


class OneForAll(Sum):
    """Mixes edges, which a decoder may not: one row is the mean over all of them."""

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        return super().forward(heads, relations, tails).mean(0)


class MeanLoss:
    """A loss of a root that depends on how many roots there are."""

    label_kinds = ("class",)

    def __init__(self, *, classes: int) -> None:
        pass

    def root_losses(self, logits: Any, labels: Any) -> Any:
        return cross_entropy(logits, labels, reduction="none") / max(1, len(labels))


class SummedLoss(MeanLoss):
    """One number for all roots together."""

    def root_losses(self, logits: Any, labels: Any) -> Any:
        return cross_entropy(logits, labels)


class CutLoss(MeanLoss):
    """A loss without a gradient of the logits."""

    def root_losses(self, logits: Any, labels: Any) -> Any:
        return torch.zeros(len(logits), requires_grad=True)


class NanOnce:
    """Cross-entropy that is NaN at one call on one of the ranks, which are processes or threads."""

    label_kinds = ("class",)

    def __init__(self, *, classes: int, rank: int, call: int) -> None:
        names = threading.current_thread().name, f"rank-{os.environ.get('RANK')}"
        self._calls_left = call if f"rank-{rank}" in names else -1

    def root_losses(self, logits: Any, labels: Any) -> Any:
        self._calls_left -= 1
        losses = cross_entropy(logits, labels, reduction="none")
        return losses * (math.nan if self._calls_left == 0 else 1.0)


class InfiniteOnce(Callback):
    """Makes the gradient infinite in one iteration, after it was summed over ranks."""

    def __init__(self, *, run_dir: Path) -> None:
        pass

    def gradient(self, run: Running) -> None:
        gradient = next(run.model.parameters()).grad
        if (run.epoch, run.iteration) == (0, 2) and gradient is not None:
            gradient.fill_(math.inf)


class Share:
    """A metric that returns means, which cannot be added up over ranks."""

    name, label_kinds, higher_is_better = "share", ("class",), True

    def __init__(self, *, classes: int) -> None:
        pass

    def sums(self, logits: Any, labels: Any) -> Any:
        return logits.double().mean().nan_to_num().reshape(1)

    def value(self, sums: Any) -> float:
        return float(sums)


class Normed:
    """An update of a number that depends on the norm of all."""

    def __init__(self, *, parameters: Any, weight_decay: float) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def update(self, parameters: Any, gradient: Any, learning_rate: float) -> None:
        parameters.sub_(gradient, alpha=learning_rate / float(gradient.norm()))


class Growing:
    """A schedule whose last factor is infinite."""

    def factor(self, step: int, steps: int) -> float:
        return math.inf if step + 1 == steps else 1.0
