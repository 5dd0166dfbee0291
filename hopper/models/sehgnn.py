"""SeHGNN (Yang et al., Simple and Efficient Heterogeneous Graph Neural Network, AAAI 2023).

``hopper dataset precompute metapaths`` averages neighbours along metapaths once, before training.
The model then reads one row for each metapath and root. It projects each metapath separately, lets
the metapaths of a root attend to each other, and classifies them together. Under ``raf``
projections run where a metapath's rows are stored, and all else runs in parallel over the roots
(Heta, appendix C).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.models.combination import Combination
from hopper.models.layer import Layer, check_heads, init_linears
from hopper.models.relation_layer import RelationLayer, Update
from hopper.models.relational import HGNN, make_head
from hopper.ops import copy_mean, weighted_sum


class Projection(nn.Sequential):
    """The second half of a metapath's projection; the first is the model's input projection.

    The published code normalises the rows of all metapaths of a root together. Here each metapath
    is normalised separately, since different servers may store them.
    """

    def __init__(self, width: int) -> None:
        linear = nn.Linear(width, width)
        init_linears([linear])
        super().__init__(nn.LayerNorm(width), nn.PReLU(), linear, nn.LayerNorm(width), nn.PReLU())


class ProjectedMean(Layer):
    """AGG_r: the mean of projected rows. A root has one row of each metapath's table."""

    reads_destination: ClassVar[bool] = False

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projection = Projection(width)

    def project(self, h_src: Tensor) -> Tensor:
        """Project rows to [n, width]."""
        return self.projection(h_src)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Average the sources' rows to [num_dst, width]."""
        if block.equally_likely:
            return copy_mean(block, z_src)
        return weighted_sum(block, z_src, block.mean_weights(z_src.dtype))


class SideBySide(Combination):
    """AGG_all: stacks the partials of all relations."""

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """Stack partials to [num_dst, relations, width]."""
        return torch.stack(list(partials), 1)


class SemanticFusion(Update):
    """The paper's transformer-based semantic fusion.

    The metapaths of a root and its own row attend to each other, and a layer fuses them.

    Parameters
    ----------
    metapaths: the number of metapaths, without the root's own row.
    heads: the number of attention heads; one in the publication.
    """

    def __init__(self, metapaths: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.own = Projection(width)
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.share = nn.Parameter(torch.zeros(()))
        """the factor of the attention's result, which begins at 0 as in the published code"""
        self.fusion = nn.Linear((metapaths + 1) * width, width)
        self.activation = nn.PReLU()
        init_linears((self.attention, self.fusion))

    def forward(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """Fuse the rows of metapaths [num_dst, metapaths, width] and the roots' own [num_dst,
        width], to [num_dst, width]."""
        rows = torch.cat((self.own(h_dst).unsqueeze(1), combined), 1)
        count, paths, width = rows.shape
        parts = self.attention(rows).view(count, paths, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value)
        rows = rows + self.share * attended.transpose(1, 2).reshape(count, paths, width)
        return self.activation(self.fusion(rows.flatten(1)))


class SeHGNN(HGNN):
    """One layer over the tables of metapaths, and a linear classifier.

    Parameters are those of :class:`hopper.models.rgcn.RGCN`. A ConfigError tells that ``heads``
    does not divide ``hidden``.
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
    ) -> None:
        check_heads(hidden, heads)
        ((relations, types),) = reads
        paths = len(relations)
        layer = RelationLayer(
            {relation: ProjectedMean(hidden) for relation in sorted(relations)},
            SideBySide(),
            {node_type: SemanticFusion(paths, hidden, heads) for node_type in sorted(types)},
            (paths, hidden),
        )
        super().__init__(target, inputs, hidden, [layer], make_head(hidden, out_dim), dropout)
