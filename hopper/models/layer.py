"""A layer in the parts that engines can place where they like."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from hopper.graph.block import Block

Algebra = Literal["sum", "mean", "softmax", "other"]


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

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """[num_dst, out]: the new rows; by default what was combined."""
        return combined

    def forward(self, block: Block, h_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, out]: the new rows of the block's destinations.

        Parameters
        ----------
        h_src: [num_src, in_dim].
        h_dst: [num_dst, in_dim].
        """
        return self.update(h_dst, self.aggregate(block, self.project(h_src), h_dst))
