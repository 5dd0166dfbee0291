"""A stack of layers over the blocks of a mini-batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from hopper.errors import RequestError
from hopper.graph.block import Block, Nodes
from hopper.models.dropout import RowDropout
from hopper.models.layer import Layer
from hopper.ops import StoredRows


class GNN(nn.Module):
    """Layers applied one after the other, with counter-based dropout before each.

    What a stack does around layer ``index`` is in two parts that read one row at a time:
    :meth:`prepare`, wherever a source's row lives, and :meth:`finish`, at the destination. With
    the layer's own parts between them they make up :meth:`step`, so an engine that places parts
    on different servers needs no other knowledge of the stack.

    Parameters
    ----------
    layers: one per block, first layer first.
    dropout: probability in [0, 1) for the input rows of every layer, the first included.
    """

    def __init__(self, layers: Sequence[Layer], dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.dropouts = nn.ModuleList(RowDropout(dropout, index) for index in range(len(layers)))

    def forward(self, blocks: Sequence[Block], x: Tensor) -> Tensor:
        """[num roots, out]: logits of the last block's destinations.

        Parameters
        ----------
        blocks: in order of computation; each one's destinations are the next one's sources.
        x: [blocks[0].num_src, in_dim], input rows; converted to the parameters' dtype.

        Raises
        ------
        RequestError
            The number of blocks or of rows does not fit.
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
        """One layer of the stack."""
        found = self.layers[index]
        assert isinstance(found, Layer)
        return found

    def step(self, index: int, block: Block, h_src: Tensor) -> Tensor:
        """[num_dst, width]: everything of layer ``index`` on one block (layer-wise inference).

        Parameters
        ----------
        h_src: [num_src, width of the stack's rows]; the destinations are its first rows.
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
        out: Tensor = self.layers[index](block, rows, rows[: block.num_dst])
        return self.finish(index, block.dst, h_src[: block.num_dst], out)

    def prepare(self, index: int, nodes: Nodes, rows: Tensor) -> Tensor:
        """[n, width of the layer's input]: what layer ``index`` reads; here, dropout.

        Row by row: a row's result depends on its node and values only.

        Parameters
        ----------
        nodes: sources of a block, with their out-degrees. rows: [n, ...], theirs.
        """
        read: Tensor = self.dropouts[index](nodes, rows)
        return read

    def finish(self, index: int, nodes: Nodes, h_dst: Tensor, out: Tensor) -> Tensor:
        """[n, ...]: the stack's new rows, row by row; here, what the layer computed.

        Parameters
        ----------
        nodes: destinations of a block, with their in-degrees.
        h_dst: [n, ...], their rows before :meth:`prepare`.
        out: [n, ...], what layer ``index`` computed.
        """
        return out


def expect_own(layer: Layer, rows: Tensor, count: int) -> None:
    """Let rows that are read when they are multiplied be read once for all that a layer does.

    Parameters
    ----------
    rows: of sources, destinations first. count: how many destinations there are.
    """
    if isinstance(rows, StoredRows):
        rows.expect(layer.own_weights(), count)


def layer_widths(in_dim: int, hidden: int, out_dim: int, layers: int) -> list[tuple[int, int]]:
    """Input and output width of each layer: in_dim, hidden, ..., hidden, out_dim."""
    widths = [in_dim, *[hidden] * (layers - 1), out_dim]
    return list(itertools.pairwise(widths))
