"""GraphSAGE (Hamilton, Ying and Leskovec, NeurIPS 2017), as it is usually trained.

It has the aggregators of section 3.3: mean, pool and LSTM. In place of a product with the
concatenation of a node's row and its neighbours', two products are added up, which is the same. The
paper's algorithm 1 also divides every new row by its L2 norm. That step is left out here, as in the
layers of DGL and PyTorch Geometric with their defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from hopper.graph.block import Block
from hopper.models.gnn import GNN, make_layers
from hopper.models.layer import Activation, Algebra, Layer, MeanLayer, init_linears, split_edges
from hopper.ops import copy_max, copy_mean


class SAGELayer(MeanLayer):
    """``W_self h_v + W_neigh mean(h_u) + b`` over the sampled in-neighbours u of v.

    The mean of no neighbours is zero. If the sampler draws some neighbours of v with a higher
    probability than others, the mean is weighted by inverse probabilities, scaled to sum to 1
    (docs/howto/samplers.md). ``W_neigh`` is applied before the aggregation if that makes rows
    narrower, and after it otherwise. Features e_uv of edges are part of messages, whose mean is
    taken: ``W_neigh h_u + W_e e_uv``.

    Parameters
    ----------
    activation: the function that is applied to the new rows; None in the last layer.
    project_first: whether ``W_neigh`` comes first; None = decide by the widths.
    edge_dim: the width of features of edges; 0 = the layer reads none.
    """

    algebra: ClassVar[Algebra] = "mean"
    is_linear: ClassVar[bool] = True

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        *,
        activation: Activation | None = None,
        project_first: bool | None = None,
        edge_dim: int = 0,
    ) -> None:
        super().__init__()
        self.self_linear = nn.Linear(in_dim, out_dim)
        self.neighbor_linear = nn.Linear(in_dim, out_dim, bias=False)
        self.activation = activation
        self.project_first = in_dim > out_dim if project_first is None else project_first
        init_linears((self.self_linear, self.neighbor_linear), nn.init.calculate_gain("relu"))
        self._add_edge_linear(edge_dim, out_dim)

    def project(self, h_src: Tensor) -> Tensor:
        """Multiply rows by ``W_neigh``, to [n, out_dim], if it comes first."""
        return self.neighbor_linear(h_src) if self.project_first else h_src

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Average the sampled in-neighbours to [num_dst, width of z_src]."""
        if block.equally_likely:
            return self.with_edges(block, copy_mean(block, z_src))
        return super().aggregate(block, z_src, h_dst)

    def own_weights(self) -> Sequence[Tensor]:
        """Return ``W_self``."""
        return (self.self_linear.weight,)

    def input_weights(self) -> Mapping[str, int]:
        """Return ``W_self`` and ``W_neigh``."""
        return {"self_linear.weight": 1, "neighbor_linear.weight": 1}

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """Add the terms of the node, its neighbours and their edges, and apply the activation."""
        rows, edges = split_edges(combined, self.edge_dim)
        out = self.self_linear(h_dst) + (rows if self.project_first else self.neighbor_linear(rows))
        return self.activate(out + self.edge_linear(edges) if self.edge_dim else out)


class _OverNeighbors(Layer):
    """``W_self h_v + W_neigh agg(z_u) + b``, where z_u depends only on a source's row."""

    reads_destination: ClassVar[bool] = False
    _numbers_sent: ClassVar[int] = 1
    """the width of z_u, in multiples of the output's width"""

    def __init__(self, in_dim: int, out_dim: int, *, activation: Activation | None = None) -> None:
        super().__init__()
        self.self_linear = nn.Linear(in_dim, out_dim)
        self.source_linear = nn.Linear(in_dim, self._numbers_sent * out_dim)
        self.neighbor_linear = nn.Linear(out_dim, out_dim, bias=False)
        self.activation = activation
        linears = (self.self_linear, self.source_linear, self.neighbor_linear)
        init_linears(linears, nn.init.calculate_gain("relu"))

    def own_weights(self) -> Sequence[Tensor]:
        return (self.self_linear.weight,)

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        return self.activate(self.self_linear(h_dst) + self.neighbor_linear(combined))


class PoolLayer(_OverNeighbors):
    """``W_self h_v + W_neigh max_u(relu(W_pool h_u + c)) + b`` over the sampled in-neighbours u.

    The maximum is taken for each column. The maximum of no neighbours is zero. It does not depend
    on probabilities of neighbours. Projected rows are as wide as the layer's output.
    """

    def input_weights(self) -> Mapping[str, int]:
        """Return ``W_self`` and ``W_pool``."""
        return {"self_linear.weight": 1, "source_linear.weight": 1}

    def project(self, h_src: Tensor) -> Tensor:
        """Return ``relu(W_pool h_u + c)``, [n, out_dim]."""
        return torch.relu(self.source_linear(h_src))

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Return the maximum over the sampled in-neighbours, [num_dst, out_dim]."""
        return copy_max(block, z_src)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the maximum of parts. Parts without edges are zero, and no value is smaller."""
        return torch.stack(list(parts)).amax(0)


class LSTMLayer(_OverNeighbors):
    """``W_self h_v + W_neigh lstm(h_u, h_u', ...) + b`` over the sampled in-neighbours of v.

    The aggregation is the output of an LSTM after the last neighbour (Hochreiter and Schmidhuber,
    Neural Computation 9(8), 1997, with forget gates), or zero without neighbours. The LSTM reads
    neighbours in the random order of their draw, which is the same on every rank. If all neighbours
    are taken, it reads them in canonical order. Its state is as wide as the layer's output. Each
    row is multiplied by the input weights once, on its home.

    The cost grows with the longest list of neighbours. Neighbours are read one after the other, and
    each step is a product of all unfinished destinations' states with a matrix of [width, 4 width].
    Destinations share steps, so a block takes as many as its largest number of neighbours.
    Evaluation takes all neighbours: a node with a million of them takes a million steps.
    """

    _numbers_sent: ClassVar[int] = 4
    reads_order = True

    def __init__(self, in_dim: int, out_dim: int, *, activation: Activation | None = None) -> None:
        super().__init__(in_dim, out_dim, activation=activation)
        self.state_linear = nn.Linear(out_dim, 4 * out_dim, bias=False)
        nn.init.orthogonal_(self.state_linear.weight)

    def input_weights(self) -> Mapping[str, int]:
        """Return ``W_self`` and the input weights of the LSTM."""
        return {"self_linear.weight": 1, "source_linear.weight": 1}

    def project(self, h_src: Tensor) -> Tensor:
        """Return the input terms of the gates and of the state, [n, 4 out_dim]."""
        return self.source_linear(h_src)

    def aggregate(self, block: Block, z_src: Tensor, h_dst: Tensor) -> Tensor:
        """Return the LSTM's output after all sampled in-neighbours, [num_dst, out_dim]."""
        lengths, order = block.edges_per_destination().sort(descending=True, stable=True)
        starts = block.indptr[:-1].index_select(0, order)
        # Longer sequences come first, so the sequences that continue are always the first rows.
        steps = torch.arange(int(lengths[:1].sum()), device=lengths.device)
        active = torch.searchsorted(-lengths, -steps).tolist()
        edges = [starts[:count] + step for step, count in enumerate(active)]
        sent = block.indices.index_select(0, torch.cat([starts[:0], *edges]))
        hidden = state = z_src.new_zeros(block.num_dst, z_src.shape[1] // 4)
        ended = []
        for rows, count in zip(z_src.index_select(0, sent).split(active), active, strict=True):
            ended.append(hidden[count:])
            gates = rows + self.state_linear(hidden[:count])
            enter, forget, leave, new = gates.chunk(4, -1)
            state = torch.sigmoid(forget) * state[:count] + torch.sigmoid(enter) * torch.tanh(new)
            hidden = torch.sigmoid(leave) * torch.tanh(state)
        # The sequences that ended last are the first rows.
        return torch.cat([hidden, *reversed(ended)]).index_select(0, order.argsort())


_LAYERS: Final[Mapping[str, Callable[..., Layer]]] = {
    "mean": SAGELayer,
    "pool": PoolLayer,
    "lstm": LSTMLayer,
}


class GraphSAGE(GNN):
    """A stack of GraphSAGE layers with ReLU between them; ``heads`` is not used.

    Parameters
    ----------
    aggregator: "mean", "pool" or "lstm".
    edge_dim: the width of features of edges, which only "mean" can read; 0 = it reads none.
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
        widths = (in_dim, *[hidden] * (layers - 1), out_dim)
        options = {"edge_dim": edge_dim} if edge_dim else {}
        super().__init__(make_layers(_LAYERS[aggregator], widths, **options), dropout)
