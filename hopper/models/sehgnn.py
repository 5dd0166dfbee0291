"""SeHGNN (Yang et al., Simple and Efficient Heterogeneous Graph Neural Network, AAAI 2023).

Neighbours are averaged along metapaths once, before training (``hopper precompute metapaths``). The
model reads one row of a metapath a root: it projects each by itself, lets the metapaths of a root
attend to each other, and classifies what they are together. Under ``raf`` the projections run where
a metapath's rows are stored, and the rest in parallel over the roots (Heta, appendix C).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from hopper.errors import ConfigError
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.models.combination import Combination
from hopper.models.layer import Layer
from hopper.models.relational import HGNN, RelationLayer, Update, make_head
from hopper.ops import copy_mean, weighted_sum


class Projection(nn.Sequential):
    """The second half of a metapath's feature projection; the model's input projection is the
    first.

    The published code normalises the rows of all metapaths of a root together. Here each metapath
    is normalised by itself, since its rows may be on a server of their own.
    """

    def __init__(self, width: int) -> None:
        linear = nn.Linear(width, width)
        nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(linear.bias)
        super().__init__(nn.LayerNorm(width), nn.PReLU(), linear, nn.LayerNorm(width), nn.PReLU())


class ProjectedMean(Layer):
    """AGG_r: the mean of projected rows; of a metapath's table a root has one row."""

    reads_destination: ClassVar[bool] = False

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projection = Projection(width)

    def project(self, h_src: Tensor) -> Tensor:
        """[n, width]: the projected rows."""
        out: Tensor = self.projection(h_src)
        return out

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, width]: the mean of the sources' rows."""
        if block.equally_likely:
            return copy_mean(block, z_src)
        return weighted_sum(block, z_src, block.mean_weights(z_src.dtype))


class SideBySide(Combination):
    """AGG_all: the partials of all relations, one behind the other."""

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """[num_dst, relations, width]."""
        return torch.stack(list(partials), 1)


class SemanticFusion(Update):
    """Attention among the metapaths of a root, its own row being one of them, and a layer over what
    they are together (the paper's transformer-based semantic fusion).

    Parameters
    ----------
    metapaths: how many there are, without the root's own row.
    heads: of the attention; published with one.
    """

    def __init__(self, metapaths: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.own = Projection(width)
        self.attention = nn.Linear(width, 3 * width, bias=False)
        self.share = nn.Parameter(torch.zeros(()))
        """of what the others say in a metapath's row; the published code begins with none"""
        self.fusion = nn.Linear((metapaths + 1) * width, width)
        self.activation = nn.PReLU()
        for linear in (self.attention, self.fusion):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.fusion.bias)

    def forward(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """[num_dst, width].

        Parameters
        ----------
        h_dst: [num_dst, width]. combined: [num_dst, metapaths, width].
        """
        rows = torch.cat((self.own(h_dst).unsqueeze(1), combined), 1)
        count, paths, width = rows.shape
        parts = self.attention(rows).view(count, paths, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value)
        rows = rows + self.share * attended.transpose(1, 2).reshape(count, paths, width)
        out: Tensor = self.activation(self.fusion(rows.flatten(1)))
        return out


class SeHGNN(HGNN):
    """One layer over the tables of metapaths, and a linear classifier; parameters as those of
    :class:`hopper.models.rgcn.RGCN`.

    Raises
    ------
    ConfigError: ``heads`` is no divisor of ``hidden``.
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
        if hidden % heads:
            raise ConfigError(
                f"model.heads: expected a divisor of the width {hidden}, given {heads}"
            )
        ((relations, types),) = reads
        paths = len(relations)
        layer = RelationLayer(
            {relation: ProjectedMean(hidden) for relation in sorted(relations)},
            SideBySide(),
            {each: SemanticFusion(paths, hidden, heads) for each in sorted(types)},
            (paths, hidden),
        )
        super().__init__(target, inputs, hidden, [layer], make_head(hidden, out_dim), dropout)
