"""Stacks of layers over the blocks of a mini-batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hopper.errors import RequestError
from hopper.graph.block import Block, Nodes
from hopper.models.dropout import RowDropout
from hopper.models.layer import Layer
from hopper.ops import StoredRows


class GNN(nn.Module):
    """Applies layers one after the other, with counter-based dropout before each.

    Around layer ``index`` a stack has two parts that work on single rows. :meth:`prepare` runs
    where a source's row is, and :meth:`finish` at the destination. Together with the layer's own
    parts they make up :meth:`step`. An engine that runs parts on different servers needs to know
    nothing else of the stack.

    Parameters
    ----------
    layers: a layer for each block, in order of computation.
    dropout: the probability in [0, 1) of dropping input rows of every layer, the first included.
    """

    def __init__(self, layers: Sequence[Layer], dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.dropouts = nn.ModuleList(RowDropout(dropout, index) for index in range(len(layers)))

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        """Return the logits [num roots, out] of the last block's destinations.

        Parameters
        ----------
        blocks: the blocks, in order of computation. The destinations of each are the sources of
            the next.
        x: the input rows [blocks[0].num_src, in_dim], which are converted to the parameters' dtype.

        Raises
        ------
        RequestError: the number of blocks or of rows does not fit.
        """
        if len(blocks) != len(self.layers):
            raise RequestError(
                f"{type(self).__name__}: expected {len(self.layers)} blocks, one per layer; "
                f"given {len(blocks)}"
            )
        h = x.to(next(self.parameters()).dtype)
        for index, block in enumerate(blocks):
            h = self.step(index, block, h)
        return h

    def layer(self, index: int) -> Layer:
        """Return one layer of the stack."""
        layer = self.layers[index]
        assert isinstance(layer, Layer)
        return layer

    def step(self, index: int, block: Block, h_src: Tensor) -> Tensor:
        """Compute all parts of layer ``index`` on one block, to rows [num_dst, width].

        Parameters
        ----------
        h_src: [num_src, width of the stack's rows]; the destinations are its first rows.

        Raises
        ------
        RequestError: the block joins two node types, or the number of rows does not fit.
        """
        if block.relation.src != block.relation.dst:
            raise RequestError(
                f"{type(self).__name__}: expected blocks within one node type; "
                f"given relation {block.relation}"
            )
        if h_src.shape[0] != block.num_src:
            raise RequestError(
                f"{type(self).__name__}, layer {index}: expected {block.num_src} source rows; "
                f"given {h_src.shape[0]}"
            )
        rows = self.prepare(index, block.src, h_src)
        expect_own(self.layer(index), rows, block.num_dst)
        out = self.layers[index](block, rows, rows[: block.num_dst])
        return self.finish(index, block.dst, h_src[: block.num_dst], out)

    def prepare(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        """Return the rows [n, width] that layer ``index`` reads; here, after dropout.

        The result of a row depends only on its node and its values.

        Parameters
        ----------
        nodes: the sources of a block, with their out-degrees.
        rows: [n, ...], their rows.
        """
        return self.dropouts[index](nodes, rows)

    def finish(self, index: int, nodes: Nodes, h_dst: Tensor, out: Tensor) -> Tensor:
        """Return the stack's new rows [n, ...]; here, what the layer computed.

        The result of a row depends only on its node and its values.

        Parameters
        ----------
        nodes: the destinations of a block, with their in-degrees.
        h_dst: [n, ...], their rows before :meth:`prepare`.
        out: [n, ...], what layer ``index`` computed.
        """
        return out


def expect_own(layer: Layer, rows: Tensor, count: int) -> None:
    """Announce a layer's products with the first ``count`` of its sources' rows, which are the
    destinations', so that stored rows are read once."""
    if isinstance(rows, StoredRows):
        rows.expect(layer.own_weights(), count)


def make_layers(
    layer_class: Callable[..., Layer], widths: Sequence[int], **options: Any
) -> list[Layer]:
    """Make layers from each of some widths to the next, with ReLU between them."""
    last = len(widths) - 2
    return [
        layer_class(a, b, activation=torch.relu if index < last else None, **options)
        for index, (a, b) in enumerate(itertools.pairwise(widths))
    ]
