"""A layer in the parts that engines can place where they like."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, Literal

import torch
from torch import Tensor, nn

from hopper.errors import RequestError
from hopper.graph.block import Block, at_least_float32
from hopper.ops import edge_sum, weighted_sum

Algebra = Literal["sum", "mean", "softmax", "other"]
_READING: Final = ("project", "aggregate", "part", "combine", "own_term", "update", "forward")
"""what of a layer reads its sources' and destinations' rows"""


class Layer(nn.Module):
    """Base of layers over a block: ``project``, ``aggregate``, ``update``.

    ``forward`` is their composition, so a layer also runs on one machine like any other module.
    A layer receives its destinations' rows separately and must not look for them among the
    sources.
    """

    algebra: ClassVar[Algebra] = "other"
    """how ``aggregate`` combines messages; says whether partial results can be combined"""
    reads_destination: ClassVar[bool] = True
    """whether ``aggregate`` reads ``h_dst`` (``update`` always may)"""
    edge_dim: int = 0
    """how wide the features of edges are that it reads; 0 = none"""
    activation: Callable[[Tensor], Tensor] | None
    """what :meth:`activate` does; it may be a module, and need not be there"""
    _combining: ClassVar[tuple[str, ...]] = ("aggregate",)

    def project(self, h_src: Tensor) -> Tensor:
        """[n, ...]: what an edge reads of its source; by default the row itself."""
        return h_src

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, ...]: messages combined per destination.

        Parameters
        ----------
        z_src: [num_src, ...], projected source rows.
        h_dst: [num_dst, in_dim], the destinations' rows before projection.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no aggregate()")

    def edge_features(self, block: Block, dtype: torch.dtype) -> Tensor:
        """[edges, edge_dim]: the features of a block's edges.

        Raises
        ------
        RequestError: the block has none, or of another width.
        """
        found = block.edge_features
        if found is None and block.num_edges == 0:
            return torch.zeros(0, self.edge_dim, dtype=dtype, device=block.device)
        if found is None or found.shape != (block.num_edges, self.edge_dim):
            raise RequestError(
                f"{type(self).__name__}: expected {block.num_edges} edges of {block.relation} with "
                f"features [{self.edge_dim}]; given "
                f"{'none' if found is None else list(found.shape)}"
            )
        return found.to(dtype)

    def part(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, ...]: what some of the destinations' edges contribute, where the others lie on
        other servers; by default ``aggregate`` over these. ``block.sampled_degree()`` counts all.

        Parameters
        ----------
        z_src, h_dst: as of :meth:`aggregate`.
        """
        return self.aggregate(block, z_src, h_dst)

    def own_weights(self) -> Sequence[Tensor]:
        """[out, in_dim] each: what ``update``, or ``aggregate``, multiplies the destinations' rows
        with besides what ``project`` does; all of it is done at once where rows are read for it."""
        return ()

    def input_weights(self) -> Mapping[str, int]:
        """By name, the parameters that multiply rows of sources and destinations, where nothing
        else reads these, each with the dimension that counts a row's numbers. Where there are any,
        the rows' columns may lie on several servers."""
        return {}

    def part_width(self) -> int | None:
        """The width of a part's rows; None where it is that of ``aggregate``'s."""
        return None

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """[num_dst, ...]: what ``aggregate`` yields over all edges, up to rounding. A class that
        defines it, and those derived from it that define no other ``aggregate``, can be trained on
        relations whose edges lie on several servers.

        Parameters
        ----------
        parts: [num_dst, ...] each, from :meth:`part`; every edge in one of them.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no joined()")

    @classmethod
    def has_parts(cls) -> bool:
        """Whether :meth:`joined` is of the class that says how messages are combined, or of one
        derived from it."""
        return cls.joined is not Layer.joined and all(
            _place(cls, "joined") <= _place(cls, name) for name in cls._combining
        )

    @classmethod
    def says(cls, name: str) -> bool:
        """Whether an attribute is of the class that says how rows are read, or of one derived from
        it: otherwise it tells of something else."""
        return all(
            _place(cls, name) <= _place(cls, other) for other in _READING if hasattr(cls, other)
        )

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """[num_dst, out]: the new rows; by default what was combined."""
        return combined

    def activate(self, rows: Tensor) -> Tensor:
        """[num_dst, out]: new rows after :attr:`activation`, if there is one."""
        # No default of the class: it would stand before a module of that name.
        activation = getattr(self, "activation", None)
        return rows if activation is None else activation(rows)

    def forward(self, block: Block, h_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, out]: the new rows of the block's destinations.

        Parameters
        ----------
        h_src: [num_src, in_dim].
        h_dst: [num_dst, in_dim].
        """
        return self.update(h_dst, self.aggregate(block, self.project(h_src), h_dst))


class SumLayer(Layer):
    """A layer that adds its neighbours up, each times a weight that no row decides.

    Then what several neighbours send to a destination can be added where they live, and one row
    sent instead of several. ``project`` must be linear and without bias, so that it may come before
    or after the sum.
    """

    algebra: ClassVar[Algebra] = "sum"
    reads_destination: ClassVar[bool] = False
    is_linear: ClassVar[bool] = False
    """whether new rows are, before :meth:`activate`, which :meth:`update` then ends in, linear in
    the rows that are read, but for what parameters that are no :meth:`input_weights` add"""
    _combining: ClassVar[tuple[str, ...]] = ("aggregate", "own_term")

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """See :class:`Layer`: the sum."""
        return torch.stack(list(parts)).sum(0)

    def edge_weights(self, block: Block, dtype: torch.dtype) -> Tensor:
        """[edges]: the weight of each message; depends on the block alone."""
        raise NotImplementedError(f"{type(self).__name__} defines no edge_weights()")

    def sum_of_edges(self, block: Block, dtype: torch.dtype) -> Tensor:
        """[num_dst, edge_dim]: the sum of the features of each destination's edges, weighted as
        messages; also where others have added up some of these."""
        if block.edge_sums is not None:
            return block.edge_sums.to(dtype)
        dtype = at_least_float32(dtype)
        weights = self.edge_weights(block, dtype)
        return edge_sum(block, self.edge_features(block, dtype), weights)

    def with_edges(self, block: Block, combined: Tensor) -> Tensor:
        """[num_dst, ...]: what was combined of sources, and :meth:`sum_of_edges`; by default this
        behind it, column by column, for :meth:`update`. Of a layer that reads no features of edges,
        what was combined."""
        if not self.edge_dim:
            return combined
        return torch.cat((combined, self.sum_of_edges(block, combined.dtype)), 1)

    def own_term(self, block: Block, h_dst: Tensor) -> Tensor | None:
        """[num_dst, width of z_src]: what a destination adds of its own; None = nothing.

        Parameters
        ----------
        h_dst: [num_dst, in_dim], before projection.
        """
        return None

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, width of z_src]: :meth:`combine` with the layer's own weights."""
        weights = self.edge_weights(block, at_least_float32(z_src.dtype))
        return self.combine(block, z_src, weights, h_dst)

    def combine(self, block: Block, z_src: Tensor, weights: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, width of z_src]: the weighted sum of sources, plus :meth:`own_term`, and what
        :meth:`with_edges` makes of it.

        Parameters
        ----------
        weights: [edges]. A source may also be a partial sum, with weight 1.
        """
        combined = weighted_sum(block, z_src, weights)
        own = self.own_term(block, h_dst)
        return self.with_edges(block, combined if own is None else combined + own)


class AttentionLayer(Layer):
    """Base of layers whose logits may read features of edges."""

    heads: int
    edge_linear: nn.Module
    """[edge_dim] to [heads]; there where features are read"""

    def edge_term(self, block: Block, dtype: torch.dtype) -> Tensor:
        """[edges, heads]: what features of edges add to logits; zeros where none are read."""
        if not self.edge_dim:
            return torch.zeros(block.num_edges, self.heads, dtype=dtype, device=block.device)
        out: Tensor = self.edge_linear(self.edge_features(block, dtype))
        return out


def edge_linear(edge_dim: int, out_dim: int) -> nn.Linear:
    """What multiplies features of edges."""
    found = nn.Linear(edge_dim, out_dim, bias=False)
    nn.init.xavier_uniform_(found.weight)
    return found


def split_edges(combined: Tensor, edge_dim: int) -> tuple[Tensor, Tensor]:
    """What was combined of sources, and the sum of features of edges behind it."""
    width = combined.shape[1] - edge_dim
    return (
        (combined, combined[:, :0]) if not edge_dim else (combined[:, :width], combined[:, width:])
    )


def _place(cls: type, name: str) -> int:
    """How far up a class's bases an attribute is defined."""
    return next(place for place, each in enumerate(cls.__mro__) if name in vars(each))
