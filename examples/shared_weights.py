"""A user-defined model of typed graphs: all relations of a layer share one matrix.

The number of its parameters does not depend on the number of relations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.models.combination import MeanOfRelations
from hopper.models.layer import SumLayer
from hopper.models.relation_layer import RelationLayer
from hopper.models.relational import HGNN, make_head
from hopper.models.rgcn import RootWeight


class MeanOfNeighbours(SumLayer):
    """``W mean(h_u)`` over the sampled in-neighbours u."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def project(self, h_src: Tensor) -> Tensor:
        """[n, width]: project rows on the rank that owns them."""
        out: Tensor = self.linear(h_src)
        return out

    def edge_weights(self, block: Block, dtype: torch.dtype) -> Tensor:
        """[edges]: the weights of a mean."""
        return block.mean_weights(dtype)


class SharedWeights(HGNN):
    """Layers with one matrix for all relations and one for each type's own rows, and a classifier.

    Parameters
    ----------
    smooth: whether to use SiLU between layers, not ReLU.

    The other parameters are those of every model of typed graphs.
    """

    def __init__(
        self,
        *,
        target: str,
        inputs: Mapping[str, int],
        reads: Sequence[tuple[Sequence[Relation], Sequence[str]]],
        out_dim: int,
        hidden: int,
        heads: int,
        dropout: float,
        smooth: bool = False,
    ) -> None:
        activation = torch.nn.functional.silu if smooth else torch.relu
        layers = []
        for relations, types in reads:
            shared = MeanOfNeighbours(hidden)
            updates = {name: RootWeight(hidden, hidden, activation) for name in sorted(types)}
            aggregations = dict.fromkeys(sorted(relations), shared)
            layers.append(RelationLayer(aggregations, MeanOfRelations(), updates, (hidden,)))
        super().__init__(target, inputs, hidden, layers, make_head(hidden, out_dim), dropout)
