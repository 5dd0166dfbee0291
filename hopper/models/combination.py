"""AGG_all of typed models: how the partial results of the relations into a type become one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from hopper.graph.block import Block, Edges
from hopper.models.layer import Layer
from hopper.ops import destination_rows, edge_sum, segment_max

CombinationAlgebra = Literal["sum", "mean", "softmax", "other"]


class Combination(nn.Module):
    """AGG_all: the partial results of all relations into a type become one row a destination.

    ``algebra`` says how: "sum" adds up, "mean" adds up and divides, "softmax" combines by
    log-sum-exp, "other" needs every relation's apart.
    """

    algebra: ClassVar[CombinationAlgebra] = "other"

    def partial(self, block: Block, aggregated: Tensor) -> Tensor:
        """[num_dst, ...]: what of one relation takes part; by default what AGG_r yields.

        Parameters
        ----------
        aggregated: [num_dst, ...], from AGG_r.
        """
        return aggregated

    def part(self, block: Block, aggregated: Tensor, place: int) -> Tensor:
        """[num_dst, ...]: what takes part of the ``place``-th part of a relation's edges.

        Parameters
        ----------
        aggregated: [num_dst, ...], from ``AGG_r.part``.
        """
        return aggregated

    def joined(self, aggregation: Layer, parts: Sequence[Tensor]) -> Tensor:
        """[num_dst, ...]: a relation's partial, of all of its parts.

        Parameters
        ----------
        aggregation: AGG_r.
        """
        return aggregation.joined(parts)

    @classmethod
    def has_parts(cls) -> bool:
        """Whether :meth:`joined` fits :meth:`partial`: who defines another one defines both."""
        bases = cls.__mro__
        found = [next(c for c in bases if name in vars(c)) for name in ("joined", "partial")]
        return bases.index(found[0]) <= bases.index(found[1])

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """[num_dst, ...]: combined rows.

        Parameters
        ----------
        partials: per relation, in canonical order, [num_dst, ...]; one at least. Where the algebra
            is not "other", one may stand for several relations: see :meth:`merge`.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")

    def merge(self, partials: Sequence[Tensor]) -> Tensor:
        """[num_dst, ...]: one partial that stands for several, if the algebra allows it."""
        raise NotImplementedError(f"{type(self).__name__} keeps partials of relations apart")


class SumOfRelations(Combination):
    """The sum over relations."""

    algebra: ClassVar[CombinationAlgebra] = "sum"

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """See :class:`Combination`."""
        return _added(partials)

    def merge(self, partials: Sequence[Tensor]) -> Tensor:
        """See :class:`Combination`."""
        return _added(partials)


class MeanOfRelations(Combination):
    """The mean over all relations into a type, or over those that a destination has edges of.

    A partial is [num_dst, width + 1]: what AGG_r yields, and how many relations that is.
    """

    algebra: ClassVar[CombinationAlgebra] = "mean"
    of_present: ClassVar[bool] = False
    """whether relations without an edge are left out"""

    def partial(self, block: Block, aggregated: Tensor) -> Tensor:
        """See :class:`Combination`."""
        count = aggregated.new_ones(block.num_dst, 1)
        if self.of_present:
            count = (block.sampled_degree() > 0).to(aggregated.dtype).unsqueeze(-1)
            aggregated = aggregated * count
        return torch.cat((aggregated, count), -1)

    def part(self, block: Block, aggregated: Tensor, place: int) -> Tensor:
        """See :class:`Combination`; the first part counts the relation."""
        partial = self.partial(block, aggregated)
        return partial if place == 0 else torch.cat((aggregated, 0 * partial[:, -1:]), -1)

    def joined(self, aggregation: Layer, parts: Sequence[Tensor]) -> Tensor:
        """See :class:`Combination`."""
        rows = aggregation.joined([part[:, :-1] for part in parts])
        return torch.cat((rows, _added([part[:, -1:] for part in parts])), -1)

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """[num_dst, width]: zero where there is no relation to count."""
        total = self.merge(partials)
        return total[:, :-1] / total[:, -1:].clamp(min=1)

    def merge(self, partials: Sequence[Tensor]) -> Tensor:
        """See :class:`Combination`."""
        return _added(partials)


class MeanOfPresentRelations(MeanOfRelations):
    """The mean over the relations that a destination has edges of."""

    of_present: ClassVar[bool] = True


class JointSoftmax(Combination):
    """One softmax over the edges of all relations (HGT, eq. 3).

    A partial is [num_dst, heads, 2 + width]: the largest logit of a relation's edges, the sum of
    ``exp(logit - largest)``, and the sum of messages times that. No gradient flows through the
    largest logits, which only keep the exponentials finite; -inf stands for no edge.
    """

    algebra: ClassVar[CombinationAlgebra] = "softmax"

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """[num_dst, heads, width]: zero where a destination has no edge of any relation."""
        return normalised(merged_softmax(partials))

    def merge(self, partials: Sequence[Tensor]) -> Tensor:
        """See :class:`Combination`: log-sum-exp."""
        return merged_softmax(partials)


def softmax_part(block: Edges, logits: Tensor, messages: Tensor) -> Tensor:
    """[num_dst, heads, 2 + width]: a partial of :class:`JointSoftmax`, of a block's edges.

    Parameters
    ----------
    logits: [edges, heads].
    messages: [edges, heads, width].
    """
    top = segment_max(block, logits)
    weights = (logits - destination_rows(block, top)).exp().unsqueeze(-1)
    sums = edge_sum(block, torch.cat((weights, weights * messages), -1))
    return torch.cat((top.unsqueeze(-1), sums), -1)


def joint_partial(block: Edges, weights: Tensor, messages: Tensor) -> Tensor:
    """[num_dst, heads, 2 + width]: one partial of :class:`JointSoftmax` for the many of each
    destination, which are the sources of ``block``.

    Parameters
    ----------
    weights: [num_src, heads, 2]: largest logits and normalisers; every source has an edge.
    messages: [num_src, heads, width]: sums of messages.
    """
    rows = weights.index_select(0, block.indices)
    own = rows[..., 0].detach()
    top = segment_max(block, own)
    scales = (own - destination_rows(block, top)).exp().unsqueeze(-1)
    parts = torch.cat((rows[..., 1:], messages.index_select(0, block.indices)), -1)
    return torch.cat((top.unsqueeze(-1), edge_sum(block, scales * parts)), -1)


def merged_softmax(partials: Sequence[Tensor]) -> Tensor:
    """[num_dst, heads, 2 + width]: one partial of :class:`JointSoftmax` that stands for several."""
    tops = torch.stack([partial[..., 0].detach() for partial in partials])
    top = tops.max(0).values
    finite = torch.where(top.isinf(), torch.zeros_like(top), top)
    scales = (tops - finite).exp().unsqueeze(-1)
    merged = _added([scale * part[..., 1:] for scale, part in zip(scales, partials, strict=True)])
    return torch.cat((top.unsqueeze(-1), merged), -1)


def normalised(partial: Tensor) -> Tensor:
    """[num_dst, heads, width]: the softmax's sum of messages; zero where there is no edge."""
    total = partial[..., 1:2]
    return partial[..., 2:] / torch.where(total == 0, torch.ones_like(total), total)


def _added(parts: Sequence[Tensor]) -> Tensor:
    """The sum, in the order given."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
