"""AGG_all of typed models, which combines the partials of all relations into a type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from hopper.graph.block import Block
from hopper.models.layer import Algebra, Layer, fits


class Combination(nn.Module):
    """AGG_all: combines the partials of all relations into a type to one row per destination.

    ``algebra`` says how. "sum" adds partials, "mean" adds and divides them, "softmax" combines them
    by log-sum-exp, and "other" needs the partial of each relation.
    """

    algebra: ClassVar[Algebra] = "other"

    def partial(self, block: Block, aggregated: Tensor) -> Tensor:
        """Make a relation's partial [num_dst, ...]; by default what AGG_r returns.

        Parameters
        ----------
        aggregated: [num_dst, ...], from AGG_r.
        """
        return aggregated

    def part(self, block: Block, aggregated: Tensor, place: int) -> Tensor:
        """Make what one part of a relation's edges contributes to its partial, [num_dst, ...].

        Parameters
        ----------
        aggregated: [num_dst, ...], from ``AGG_r.part``.
        place: the number of the part.
        """
        return aggregated

    def join(self, aggregation: Layer, parts: Sequence[Tensor]) -> Tensor:
        """Join all parts of a relation to its partial [num_dst, ...].

        Parameters
        ----------
        aggregation: AGG_r.
        """
        return aggregation.join(parts)

    @classmethod
    def has_parts(cls) -> bool:
        """Return whether :meth:`join` fits :meth:`partial`: a class must not override only the
        last."""
        return fits(cls, "join", "partial")

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """Combine partials to rows [num_dst, ...].

        Parameters
        ----------
        partials: at least one, [num_dst, ...], in canonical order of their relations. Unless the
            algebra is "other", a partial may come from several relations, by :meth:`merge`.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no forward()")

    def merge(self, partials: Sequence[Tensor]) -> Tensor:
        """Merge several partials to one [num_dst, ...], if the algebra allows it."""
        raise NotImplementedError(f"{type(self).__name__} keeps partials of relations apart")


class SumOfRelations(Combination):
    """Sums over relations."""

    algebra: ClassVar[Algebra] = "sum"

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """Sum the partials."""
        return _add(partials)

    merge = forward


class MeanOfRelations(Combination):
    """Averages over all relations into a type, or over those of which a destination has edges.

    A partial is [num_dst, width + 1]: what AGG_r returns, and the number of relations in it.
    """

    algebra: ClassVar[Algebra] = "mean"
    of_present: ClassVar[bool] = False
    """whether relations without an edge to the destination are left out"""

    def partial(self, block: Block, aggregated: Tensor) -> Tensor:
        """Append the number of relations, 1 or 0, to what AGG_r returned."""
        count = aggregated.new_ones(block.num_dst, 1)
        if self.of_present:
            count = (block.sampled_degree() > 0).to(aggregated.dtype).unsqueeze(-1)
            aggregated = aggregated * count
        return torch.cat((aggregated, count), -1)

    def part(self, block: Block, aggregated: Tensor, place: int) -> Tensor:
        """Append the number of relations, which only the first part counts."""
        partial = self.partial(block, aggregated)
        return partial if place == 0 else torch.cat((aggregated, 0 * partial[:, -1:]), -1)

    def join(self, aggregation: Layer, parts: Sequence[Tensor]) -> Tensor:
        """Join the parts of AGG_r, and sum the numbers of relations."""
        rows = aggregation.join([part[:, :-1] for part in parts])
        return torch.cat((rows, _add([part[:, -1:] for part in parts])), -1)

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """Return the means [num_dst, width]; zero where no relation counts."""
        total = self.merge(partials)
        return total[:, :-1] / total[:, -1:].clamp(min=1)

    def merge(self, partials: Sequence[Tensor]) -> Tensor:
        """Sum the partials and their numbers of relations."""
        return _add(partials)


class MeanOfPresentRelations(MeanOfRelations):
    """Averages over the relations of which a destination has edges."""

    of_present: ClassVar[bool] = True


class JointSoftmax(Combination):
    """Computes one softmax over the edges of all relations (HGT, eq. 3).

    A partial is [num_dst, heads, 2 + width]: the largest logit of a relation's edges, the sum of
    ``exp(logit - largest)``, and the sum of messages times these. A largest logit of -inf means no
    edge. No gradient flows through largest logits, which only keep the exponentials finite.
    """

    algebra: ClassVar[Algebra] = "softmax"

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """Return the rows [num_dst, heads, width]; zero for destinations without edges."""
        return normalise(merge_softmax(partials))

    def merge(self, partials: Sequence[Tensor]) -> Tensor:
        """Merge partials by log-sum-exp."""
        return merge_softmax(partials)


def merge_softmax(partials: Sequence[Tensor]) -> Tensor:
    """Merge partials of :class:`JointSoftmax` to one [num_dst, heads, 2 + width]."""
    if len(partials) == 1:
        return partials[0]
    tops = torch.stack([partial[..., 0].detach() for partial in partials])
    top = tops.max(0).values
    finite = torch.where(top.isinf(), torch.zeros_like(top), top)
    scales = (tops - finite).exp().unsqueeze(-1)
    merged = _add([scale * part[..., 1:] for scale, part in zip(scales, partials, strict=True)])
    return torch.cat((top.unsqueeze(-1), merged), -1)


def normalise(partial: Tensor) -> Tensor:
    """Divide a partial's messages by their normaliser, to [num_dst, heads, width]; zero for
    destinations without edges."""
    total = partial[..., 1:2]
    return partial[..., 2:] / torch.where(total == 0, torch.ones_like(total), total)


def _add(parts: Sequence[Tensor]) -> Tensor:
    return sum(parts[1:], parts[0])
