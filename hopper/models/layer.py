"""Layers, made of parts that engines can run on different ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Final, Literal

import torch
from torch import Tensor, nn

from hopper.errors import ConfigError, RequestError
from hopper.graph.block import Block, at_least_float32
from hopper.ops import edge_sum, weighted_sum

Activation = Callable[[Tensor], Tensor]
Algebra = Literal["sum", "mean", "softmax", "other"]
_READING: Final = ("project", "aggregate", "part", "combine", "own_term", "update", "forward")
"""The methods of a layer that read rows of its sources and destinations."""


class Layer(nn.Module):
    """Base class of layers over a block, made of ``project``, ``aggregate`` and ``update``.

    ``forward`` composes the three, so a layer also runs on one machine like any other module. A
    layer receives its destinations' rows as an argument, and must not look for them among the
    sources.
    """

    algebra: ClassVar[Algebra] = "other"
    """how ``aggregate`` combines messages, which decides whether partial results can be combined"""
    reads_destination: ClassVar[bool] = True
    """whether ``aggregate`` reads ``h_dst`` (``update`` always may)"""
    reads_order: ClassVar[bool] = False
    """whether the order of a destination's edges matters, by more than rounding"""
    edge_dim: int = 0
    """the width of features of edges; 0 = the layer reads none"""
    edge_linear: nn.Module
    """a map of the features, from [edge_dim], if they are read"""
    activation: Activation | None
    """the function that :meth:`activate` applies; a layer may have none"""
    _combining: ClassVar[tuple[str, ...]] = ("aggregate",)

    def project(self, h_src: Tensor) -> Tensor:
        """Return what edges read of their sources, [n, ...]; by default the rows themselves."""
        return h_src

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Combine the messages of each destination to [num_dst, ...].

        Parameters
        ----------
        z_src: [num_src, ...], the projected rows of sources.
        h_dst: [num_dst, in_dim], the rows of destinations before projection.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no aggregate()")

    def edge_features(self, block: Block, dtype: torch.dtype) -> Tensor:
        """Return the features [edges, edge_dim] of a block's edges.

        Raises
        ------
        RequestError: the block has no features of edges, or of another width.
        """
        features = block.edge_features
        if features is None and block.num_edges == 0:
            return torch.zeros(0, self.edge_dim, dtype=dtype, device=block.device)
        if features is None or features.shape != (block.num_edges, self.edge_dim):
            raise RequestError(
                f"{type(self).__name__}: expected {block.num_edges} edges of {block.relation} with "
                f"features [{self.edge_dim}]; given "
                f"{'none' if features is None else list(features.shape)}"
            )
        return features.to(dtype)

    def _add_edge_linear(self, edge_dim: int, out_dim: int) -> None:
        """Add a linear map of features of edges, unless none are read."""
        self.edge_dim = edge_dim
        if edge_dim:
            self.edge_linear = nn.Linear(edge_dim, out_dim, bias=False)
            init_linears([self.edge_linear])

    def part(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Combine a part of each destination's edges to [num_dst, ...]; by default ``aggregate``.

        Other servers combine the other edges. ``block.sampled_degree()`` counts all of them.

        Parameters
        ----------
        z_src, h_dst: as in :meth:`aggregate`.
        """
        return self.aggregate(block, z_src, h_dst)

    def own_weights(self) -> Sequence[Tensor]:
        """Return the weights [out, in_dim] that multiply destinations' rows, except ``project``'s.

        Stored rows are read once for all of these products.
        """
        return ()

    def input_weights(self) -> Mapping[str, int]:
        """Return the parameters that multiply input rows, if nothing else reads these rows.

        Returns
        -------
        By name of a parameter, the dimension of it that matches the columns of rows. If it is not
        empty, the columns of rows may be on several servers.
        """
        return {}

    def part_width(self) -> int | None:
        """Return the width of rows of :meth:`part`; None if it is that of ``aggregate``'s rows."""
        return None

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Join parts to what ``aggregate`` returns for all edges, up to rounding.

        A class that defines it can be trained on relations whose edges are on several servers. So
        can derived classes, unless they define another ``aggregate``.

        Parameters
        ----------
        parts: results [num_dst, ...] of :meth:`part`; each edge belongs to one of them.
        """
        raise NotImplementedError(f"{type(self).__name__} defines no join()")

    @classmethod
    def has_parts(cls) -> bool:
        """Return whether :meth:`join` fits the methods that combine messages.

        It fits if no derived class overrides these methods without it.
        """
        return cls.join is not Layer.join and all(
            fits(cls, "join", name) for name in cls._combining
        )

    @classmethod
    def says(cls, name: str) -> bool:
        """Return whether an attribute describes how this class reads rows.

        It does not if a derived class overrides a method that reads rows, but not the attribute.
        """
        return all(fits(cls, name, other) for other in _READING if hasattr(cls, other))

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """Return the new rows [num_dst, out]; by default the combined ones."""
        return combined

    def activate(self, rows: Tensor) -> Tensor:
        """Apply :attr:`activation` to new rows [num_dst, out], if there is one."""
        # A class attribute as default would hide a registered module of the same name.
        activation = getattr(self, "activation", None)
        return rows if activation is None else activation(rows)

    def forward(self, block: Block, h_src: Tensor, h_dst: Tensor) -> Tensor:
        """Return the new rows [num_dst, out] of the block's destinations.

        Parameters
        ----------
        h_src: [num_src, in_dim].
        h_dst: [num_dst, in_dim].
        """
        return self.update(h_dst, self.aggregate(block, self.project(h_src), h_dst))


class SumLayer(Layer):
    """A layer that sums its neighbours' rows, with weights that do not depend on rows.

    Messages of several neighbours to one destination can be summed on their home, and sent as one
    row. ``project`` must be linear and without bias, so that it may come before or after the sum.
    """

    algebra: ClassVar[Algebra] = "sum"
    reads_destination: ClassVar[bool] = False
    is_linear: ClassVar[bool] = False
    """whether new rows are linear in the input rows up to :meth:`activate`, with which
    :meth:`update` ends; parameters that are not in :meth:`input_weights` may add to them"""
    _combining: ClassVar[tuple[str, ...]] = ("aggregate", "own_term")

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Sum the parts."""
        return torch.stack(list(parts)).sum(0)

    def edge_weights(self, block: Block, dtype: torch.dtype) -> Tensor:
        """Return the weights [edges] of messages, which depend on the block alone."""
        raise NotImplementedError(f"{type(self).__name__} defines no edge_weights()")

    def sum_of_edges(self, block: Block, dtype: torch.dtype) -> Tensor:
        """Sum the features of each destination's edges to [num_dst, edge_dim].

        They are weighted as messages. If other ranks have already summed some of them, the block
        has the sums.
        """
        if block.edge_sums is not None:
            return block.edge_sums.to(dtype)
        dtype = at_least_float32(dtype)
        weights = self.edge_weights(block, dtype)
        return edge_sum(block, self.edge_features(block, dtype), weights)

    def with_edges(self, block: Block, combined: Tensor) -> Tensor:
        """Append :meth:`sum_of_edges` to the combined rows, for :meth:`update`.

        A layer that reads no features of edges returns the combined rows.
        """
        if not self.edge_dim:
            return combined
        return torch.cat((combined, self.sum_of_edges(block, combined.dtype)), 1)

    def own_term(self, block: Block, h_dst: Tensor) -> Tensor | None:
        """Return what a destination's own row adds, [num_dst, width of z_src]; None = nothing.

        Parameters
        ----------
        h_dst: [num_dst, in_dim], the rows before projection.
        """
        return None

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Combine messages with the layer's own weights; see :meth:`combine`."""
        weights = self.edge_weights(block, at_least_float32(z_src.dtype))
        return self.combine(block, z_src, weights, h_dst)

    def combine(self, block: Block, z_src: Tensor, weights: Tensor, h_dst: Tensor) -> Tensor:
        """Sum the weighted rows of sources and :meth:`own_term`, and apply :meth:`with_edges`.

        Parameters
        ----------
        weights: [edges]. A source may also be a partial sum, which has weight 1.
        """
        combined = weighted_sum(block, z_src, weights)
        own_term = self.own_term(block, h_dst)
        return self.with_edges(block, combined if own_term is None else combined + own_term)


class MeanLayer(SumLayer):
    """A layer that averages its neighbours' rows, weighted by their inverse probabilities."""

    def edge_weights(self, block: Block, dtype: torch.dtype) -> Tensor:
        """Return the weights [edges] of a mean."""
        return block.mean_weights(dtype)


class AttentionLayer(Layer):
    """Base class of layers with attention, whose logits may read features of edges."""

    heads: int

    def edge_term(self, block: Block, dtype: torch.dtype) -> Tensor:
        """Return what features of edges add to logits, [edges, heads]; zero if none are read."""
        if not self.edge_dim:
            return torch.zeros(block.num_edges, self.heads, dtype=dtype, device=block.device)
        return self.edge_linear(self.edge_features(block, dtype))


def init_linears(modules: Iterable[nn.Module], gain: float = 1.0) -> None:
    """Draw the weights of linear maps by Glorot's rule, and set their biases to zero; leave other
    modules as they are."""
    for linear in modules:
        if isinstance(linear, nn.Linear):
            nn.init.xavier_uniform_(linear.weight, gain)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)


def check_heads(width: int, heads: int) -> None:
    """Check that the number of heads divides a width; a ConfigError names the key."""
    if width % heads:
        raise ConfigError(f"model.heads: expected a divisor of the width {width}, given {heads}")


def split_edges(combined: Tensor, edge_dim: int) -> tuple[Tensor, Tensor]:
    """Split combined rows into the part of sources and the sum of features of edges."""
    width = combined.shape[1] - edge_dim
    return (
        (combined, combined[:, :0]) if not edge_dim else (combined[:, :width], combined[:, width:])
    )


def fits(cls: type, name: str, other: str) -> bool:
    """Return whether no base of a class overrides one of its attributes, ``other``, but not another
    one, ``name``."""
    first, second = (
        next(place for place, base in enumerate(cls.__mro__) if attribute in vars(base))
        for attribute in (name, other)
    )
    return first <= second
