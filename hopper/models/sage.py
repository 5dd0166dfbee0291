"""GraphSAGE (Hamilton, Ying and Leskovec, NeurIPS 2017, algorithm 1): its aggregators of section
3.3, mean, pool and LSTM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from hopper.graph.block import Block
from hopper.models.gnn import GNN, layer_widths
from hopper.models.layer import Algebra, Layer, SumLayer, edge_linear, split_edges
from hopper.ops import copy_max, copy_mean


class SAGELayer(SumLayer):
    """``W_self h_v + W_neigh mean(h_u) + b`` over the sampled in-neighbours u of v.

    The mean of no neighbours is zero. Where the sampler draws some neighbours of v with a higher
    probability than others, the mean is weighted by inverse probabilities that are scaled to add up
    to 1 (docs/samplers.md). ``W_neigh`` is applied before the aggregation where that
    makes rows narrower, after it otherwise. Features e_uv of edges are part of messages:
    ``W_neigh h_u + W_e e_uv``, of which the mean is taken.

    Parameters
    ----------
    activation: applied to the new rows; None in the last layer.
    project_first: overrides the choice of order.
    edge_dim: width of features of edges; 0 = none are read.
    """

    algebra: ClassVar[Algebra] = "mean"
    is_linear: ClassVar[bool] = True

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        activation: Callable[[Tensor], Tensor] | None = None,
        project_first: bool | None = None,
        edge_dim: int = 0,
    ) -> None:
        super().__init__()
        self.self_linear = nn.Linear(in_dim, out_dim)
        self.neighbor_linear = nn.Linear(in_dim, out_dim, bias=False)
        self.activation = activation
        self.project_first = in_dim > out_dim if project_first is None else project_first
        gain = nn.init.calculate_gain("relu")
        nn.init.xavier_uniform_(self.self_linear.weight, gain)
        nn.init.xavier_uniform_(self.neighbor_linear.weight, gain)
        nn.init.zeros_(self.self_linear.bias)
        self.edge_dim = edge_dim
        if edge_dim:
            self.edge_linear = edge_linear(edge_dim, out_dim)

    def project(self, h_src: Tensor) -> Tensor:
        """[n, out_dim] where ``W_neigh`` comes first, else the rows themselves."""
        return self._neighbor(h_src) if self.project_first else h_src

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, width of z_src]: the mean over sampled in-neighbours."""
        if block.equally_likely:
            return self.with_edges(block, copy_mean(block, z_src))
        return super().aggregate(block, z_src, h_dst)

    def own_weights(self) -> Sequence[Tensor]:
        """See :class:`Layer`."""
        return (self.self_linear.weight,)

    def input_weights(self) -> Mapping[str, int]:
        """See :class:`Layer`."""
        return {"self_linear.weight": 1, "neighbor_linear.weight": 1}

    def edge_weights(self, block: Block, dtype: torch.dtype) -> Tensor:
        """[edges]: those of a mean."""
        return block.mean_weights(dtype)

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """[num_dst, out_dim]: self term, ``W_neigh`` where it comes last, ``W_e``, bias,
        activation."""
        own: Tensor = self.self_linear(h_dst)
        rows, edges = split_edges(combined, self.edge_dim)
        out = own + (rows if self.project_first else self._neighbor(rows))
        return self.activate(out + self.edge_linear(edges) if self.edge_dim else out)

    def _neighbor(self, rows: Tensor) -> Tensor:
        out: Tensor = self.neighbor_linear(rows)
        return out


class _OverNeighbors(Layer):
    """``W_self h_v + W_neigh agg(z_u) + b``, with z_u made of a source's row alone.

    Parameters
    ----------
    activation: applied to the new rows; None in the last layer.
    """

    reads_destination: ClassVar[bool] = False
    _numbers_sent: ClassVar[int] = 1
    """how wide z_u is, in widths of the output"""

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.self_linear = nn.Linear(in_dim, out_dim)
        self.source_linear = nn.Linear(in_dim, self._numbers_sent * out_dim)
        self.neighbor_linear = nn.Linear(out_dim, out_dim, bias=False)
        self.activation = activation
        gain = nn.init.calculate_gain("relu")
        for linear in (self.self_linear, self.source_linear, self.neighbor_linear):
            nn.init.xavier_uniform_(linear.weight, gain)
        for linear in (self.self_linear, self.source_linear):
            nn.init.zeros_(linear.bias)

    def own_weights(self) -> Sequence[Tensor]:
        """See :class:`Layer`."""
        return (self.self_linear.weight,)

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """[num_dst, out_dim]: self term, ``W_neigh``, bias, activation."""
        return self.activate(self.self_linear(h_dst) + self.neighbor_linear(combined))


class PoolLayer(_OverNeighbors):
    """``W_self h_v + W_neigh max_u(relu(W_pool h_u + c)) + b`` over the sampled in-neighbours u.

    The maximum is taken number by number; of no neighbours it is zero. How likely a neighbour was
    to be sampled has no part in it. Rows in between are as wide as the layer's output.
    """

    def input_weights(self) -> Mapping[str, int]:
        """See :class:`Layer`."""
        return {"self_linear.weight": 1, "source_linear.weight": 1}

    def project(self, h_src: Tensor) -> Tensor:
        """[n, out_dim]: what the maximum is taken of."""
        return torch.relu(self.source_linear(h_src))

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, out_dim]: the maximum over sampled in-neighbours."""
        return copy_max(block, z_src)

    def joined(self, parts: Sequence[Tensor]) -> Tensor:
        """See :class:`Layer`: the maximum; what has no neighbours has zeros, the least there is."""
        return torch.stack(list(parts)).amax(0)


class LSTMLayer(_OverNeighbors):
    """``W_self h_v + W_neigh lstm(h_u, h_u', ...) + b`` over the sampled in-neighbours of v.

    What an LSTM has after the last of them (Hochreiter and Schmidhuber, Neural Computation 9(8),
    1997, with forget gates); zeros after none. It reads them in the order of their draw, a random
    one, that is the same whoever draws them; where all neighbours are taken, in their canonical
    order. Its state is as wide as the layer's output; what it multiplies a row with is done once a
    row, where the row is.
    """

    _numbers_sent: ClassVar[int] = 4

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(in_dim, out_dim, activation=activation)
        self.state_linear = nn.Linear(out_dim, 4 * out_dim, bias=False)
        nn.init.orthogonal_(self.state_linear.weight)

    def input_weights(self) -> Mapping[str, int]:
        """See :class:`Layer`."""
        return {"self_linear.weight": 1, "source_linear.weight": 1}

    def project(self, h_src: Tensor) -> Tensor:
        """[n, 4 out_dim]: a row's part of the input, forget and output gates and of the state."""
        out: Tensor = self.source_linear(h_src)
        return out

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """[num_dst, out_dim]: the LSTM's output after all sampled in-neighbours."""
        lengths, order = block.edges_per_destination().sort(descending=True, stable=True)
        starts = block.indptr[:-1].index_select(0, order)
        # Longer sequences first, so that those that go on are the first ones.
        steps = torch.arange(int(lengths[:1].sum()), device=lengths.device)
        going = torch.searchsorted(-lengths, -steps).tolist()
        edges = [starts[:count] + step for step, count in enumerate(going)]
        sent = block.indices.index_select(0, torch.cat([starts[:0], *edges]))
        hidden = state = z_src.new_zeros(block.num_dst, z_src.shape[1] // 4)
        ended = []
        for rows, count in zip(z_src.index_select(0, sent).split(going), going, strict=True):
            ended.append(hidden[count:])
            gates = rows + self.state_linear(hidden[:count])
            enter, forget, leave, new = gates.chunk(4, -1)
            state = torch.sigmoid(forget) * state[:count] + torch.sigmoid(enter) * torch.tanh(new)
            hidden = torch.sigmoid(leave) * torch.tanh(state)
        # The last ones to end are the first rows.
        return torch.cat([hidden, *reversed(ended)]).index_select(0, order.argsort())


_LAYERS: Final = {"mean": SAGELayer, "pool": PoolLayer, "lstm": LSTMLayer}


class GraphSAGE(GNN):
    """A stack of GraphSAGE layers with ReLU between them; ``heads`` is not used.

    Parameters
    ----------
    aggregator: "mean", "pool" or "lstm".
    edge_dim: width of features of edges, which "mean" can read; 0 = none are read.
    """

    def __init__(
        self,
        *,
        in_dim: int,
        out_dim: int,
        layers: int,
        hidden: int,
        heads: int,
        dropout: float,
        aggregator: str = "mean",
        edge_dim: int = 0,
    ) -> None:
        widths = layer_widths(in_dim, hidden, out_dim, layers)
        kind: Callable[..., Layer] = _LAYERS[aggregator]
        of_edges = {"edge_dim": edge_dim} if edge_dim else {}
        stack = [
            kind(a, b, activation=torch.relu if index < layers - 1 else None, **of_edges)
            for index, (a, b) in enumerate(widths)
        ]
        super().__init__(stack, dropout)
