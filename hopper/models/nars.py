"""NARS (Yu et al., Scalable Graph Neural Networks for Heterogeneous Graphs, 2020).

``hopper dataset precompute subsets`` averages neighbours over subsets of the relations once, before
training. A root then has a row for every subset and hop. The model weights the numbers of these
rows, sums over the subsets of each hop, and classifies the hops together, as SIGN does. Tables
whose relation to the roots has the same name belong to one hop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from hopper.graph.schema import Relation
from hopper.models.combination import SumOfRelations
from hopper.models.layer import MeanLayer
from hopper.models.relation_layer import RelationLayer, Update
from hopper.models.relational import HGNN, make_head


class SubsetWeights(nn.Module):
    """The weights of a subset in its hop, one for each column of rows (section 3.2, eq. 3).

    They begin around one over the number of the hop's ``subsets``.
    """

    def __init__(self, width: int, subsets: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.empty(width))
        nn.init.uniform_(self.weights, 0.5 / subsets, 1.5 / subsets)

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows [n, width] by the weights."""
        return rows * self.weights


class HopSum(MeanLayer):
    """AGG_r: puts a table's projected rows, of which a root has one, into the columns of its hop.

    The sum over relations then sums over the subsets of each hop.

    Parameters
    ----------
    place: the table's hop, from 0.
    hops: the number of hops.
    """

    def __init__(self, width: int, place: int, hops: int) -> None:
        super().__init__()
        self._padding = width * place, width * (hops - place - 1)

    def project(self, h_src: Tensor) -> Tensor:
        """Pad rows with zeros for the other hops, to [n, hops * width]."""
        return functional.pad(h_src, self._padding)


class HopFusion(Update):
    """Applies a layer to each of ``hops`` hops and to the root's own row, and one to all together
    (SIGN)."""

    def __init__(self, hops: int, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(hops, width))
        self.matrices = nn.Parameter(torch.empty(hops + 1, width, width))
        self.biases = nn.Parameter(torch.zeros(hops + 1, width))
        self.fusion = nn.Linear((hops + 1) * width, width)
        self.activations = nn.ModuleList(nn.PReLU() for _ in range(3))
        for matrix in (*self.matrices, self.fusion.weight):
            nn.init.xavier_uniform_(matrix)
        nn.init.zeros_(self.fusion.bias)

    def forward(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """Fuse the sums over subsets [num_dst, hops * width] and the roots' own rows [num_dst,
        width], to [num_dst, width]."""
        hops = combined.view(-1, *self.bias.shape) + self.bias
        first, second, last = self.activations
        rows = first(torch.cat((h_dst.unsqueeze(1), hops), 1))
        rows = torch.einsum("nhi,hio->nho", rows, self.matrices) + self.biases
        return last(self.fusion(second(rows).flatten(1)))


class NARS(HGNN):
    """One layer over the tables of subsets and hops, and a linear classifier.

    The tables of a hop share a matrix. Parameters are those of :class:`hopper.models.rgcn.RGCN`.
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
        ((relations, types),) = reads
        names = sorted({relation.rel for relation in relations})
        layer = RelationLayer(
            {r: HopSum(hidden, names.index(r.rel), len(names)) for r in sorted(relations)},
            SumOfRelations(),
            {node_type: HopFusion(len(names), hidden) for node_type in sorted(types)},
            (len(names) * hidden,),
        )
        super().__init__(target, inputs, hidden, [layer], make_head(hidden, out_dim), dropout)
        self._weight_subsets(relations)

    def _weight_subsets(self, relations: Sequence[Relation]) -> None:
        """Replace the tables' input projections by weights of subsets and a matrix for each hop and
        width; the roots' own rows keep their projection."""
        hops = [relation.rel for relation in relations]
        hop_of = {relation.src: relation.rel for relation in relations}
        matrices: dict[tuple[str, int], nn.Linear] = {}
        for place, node_type in enumerate(self.types):
            if node_type == self.target or node_type not in hop_of:
                continue
            hop, width = hop_of[node_type], self.widths[node_type]
            if (hop, width) not in matrices:
                matrix = nn.Linear(width, self.hidden, bias=False)
                nn.init.xavier_uniform_(matrix.weight)
                matrices[hop, width] = matrix
            weights = SubsetWeights(width, hops.count(hop))
            self.inputs[place] = nn.Sequential(weights, matrices[hop, width])
