"""R-GCN: Schlichtkrull et al., Modeling Relational Data with Graph Convolutional Networks.

ESWC 2018.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from hopper.errors import ConfigError
from hopper.graph.block import Block, Edges
from hopper.graph.schema import Relation
from hopper.models.combination import SumOfRelations
from hopper.models.layer import Activation, MeanLayer, init_linears
from hopper.models.merged import MergedRelations
from hopper.models.relation_layer import MergedInputs, MergedLayer, Update
from hopper.models.relational import HGNN, NO_EDGES, make_head
from hopper.models.typed_rows import TypedRows, linear_by_type
from hopper.ops import copy_sum, grouped_product, weighted_sum
from hopper.ops.groups import Groups


class RelationMean(MeanLayer):
    """AGG_r: ``mean_u W_r h_u`` over the sampled in-neighbours (eq. 2, c = their number).

    :class:`RGCNLayer` computes the means of all relations at once.

    Features of edges are part of messages: ``mean_u (W_r h_u + W_re e_uv)``.

    Parameters
    ----------
    weight: the module that multiplies rows by ``W_r``.
    out_dim: the width of its result.
    edge_dim: the width of features of edges; 0 = the layer reads none.
    """

    def __init__(self, weight: nn.Module, out_dim: int = 0, edge_dim: int = 0) -> None:
        super().__init__()
        self.weight = weight
        self._add_edge_linear(edge_dim, out_dim)

    def project(self, h_src: Tensor) -> Tensor:
        """Return ``W_r h_u``, [n, out_dim]."""
        return self.weight(h_src)

    def edge_term(self, block: Block, dtype: torch.dtype) -> Tensor:
        """Return the mean of ``W_re e_uv``, [num_dst, out_dim]."""
        return self.edge_linear(self.sum_of_edges(block, dtype))


class Bases(nn.Module):
    """The basis matrices from which a layer makes the weights of all relations (eq. 3)."""

    def __init__(self, bases: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.matrices = nn.Parameter(torch.empty(bases, in_dim, out_dim))
        for matrix in self.matrices:
            nn.init.xavier_uniform_(matrix, nn.init.calculate_gain("relu"))


class OfBases(nn.Module):
    """A relation's weight ``W_r = sum_b a_rb V_b``, of which it owns only the coefficients."""

    def __init__(self, bases: Bases) -> None:
        super().__init__()
        self.coefficients = nn.Parameter(torch.empty(bases.matrices.shape[0]))
        nn.init.normal_(self.coefficients, std=bases.matrices.shape[0] ** -0.5)
        # The tuple hides the bases from torch, which would save them once per relation.
        self._bases = (bases,)

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows by ``W_r``, to [n, out_dim]."""
        return rows @ torch.einsum("b,bio->io", self.coefficients, self._bases[0].matrices)


class BlockDiagonal(nn.Module):
    """``W_r`` as a direct sum of small matrices (eq. 4); a ConfigError tells that the widths are
    not multiples of the number of blocks."""

    def __init__(self, blocks: int, in_dim: int, out_dim: int) -> None:
        super().__init__()
        if in_dim % blocks or out_dim % blocks:
            raise ConfigError(
                f"model.diagonal_blocks: expected a divisor of the widths {in_dim} and {out_dim}, "
                f"given {blocks}"
            )
        self.blocks = blocks
        self.matrices = nn.Parameter(torch.empty(blocks, in_dim // blocks, out_dim // blocks))
        for matrix in self.matrices:
            nn.init.xavier_uniform_(matrix, nn.init.calculate_gain("relu"))

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows by ``W_r``, to [n, out_dim]."""
        parts = rows.view(rows.shape[0], self.blocks, self.matrices.shape[1])
        return torch.einsum("nbi,bio->nbo", parts, self.matrices).flatten(1)


class RootWeight(Update):
    """``activation(combined + W_0 h_v + b)``, with separate weights for each node type."""

    def __init__(self, in_dim: int, out_dim: int, activation: Activation | None) -> None:
        super().__init__()
        self.linear = nn.Linear(in_dim, out_dim)
        self.activation = activation
        init_linears([self.linear], nn.init.calculate_gain("relu"))

    def forward(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """Add the root's term to the combined rows, and apply the activation."""
        out = combined + self.linear(h_dst)
        return out if self.activation is None else self.activation(out)

    @classmethod
    def update_all(cls, updates: Sequence[Self], h_dst: TypedRows, combined: Tensor) -> Tensor:
        """Multiply the rows of all types at once."""
        out = combined + linear_by_type(
            [update.linear for update in updates], h_dst.matrix, h_dst.groups
        )
        activation = updates[0].activation
        return out if activation is None else activation(out)


class Bias(Update):
    """``activation(combined + b)``, with a separate bias for each node type."""

    reads_destination: ClassVar[bool] = False

    def __init__(self, out_dim: int, activation: Activation | None) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(out_dim))
        self.activation = activation

    def forward(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """Add the bias to the combined rows, and apply the activation."""
        out = combined + self.bias
        return out if self.activation is None else self.activation(out)


class RootRow(Bias):
    """``activation(combined + h_v + b)``, with a separate bias for each node type."""

    reads_destination: ClassVar[bool] = True

    def forward(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        """Add the node's own row and the bias, and apply the activation."""
        return super().forward(h_dst, combined + h_dst)


class RGCNLayer(MergedLayer[RelationMean]):
    """An R-GCN layer.

    Parameters
    ----------
    bases: the number of bases; 0 = no decomposition into bases.
    diagonal_blocks: the number of blocks; 0 = no decomposition into diagonal blocks.
    weighted: whether there are matrices. Without them, rows are already multiplied.
    """

    def __init__(
        self,
        relations: Sequence[Relation],
        types: Sequence[str],
        in_dim: int,
        out_dim: int,
        *,
        bases: int,
        diagonal_blocks: int,
        root_weight: bool,
        activation: Activation | None,
        weighted: bool = True,
        edges: Mapping[Relation, int] = NO_EDGES,
    ) -> None:
        shared = Bases(bases, in_dim, out_dim) if bases and weighted else None

        def weight() -> nn.Module:
            if not weighted:
                return nn.Identity()
            if shared is not None:
                return OfBases(shared)
            if diagonal_blocks:
                return BlockDiagonal(diagonal_blocks, in_dim, out_dim)
            linear = nn.Linear(in_dim, out_dim, bias=False)
            init_linears([linear], nn.init.calculate_gain("relu"))
            return linear

        def update() -> Update:
            if not root_weight:
                return Bias(out_dim, activation)
            if not weighted:
                return RootRow(out_dim, activation)
            return RootWeight(in_dim, out_dim, activation)

        super().__init__(
            {r: RelationMean(weight(), out_dim, edges.get(r, 0)) for r in sorted(relations)},
            SumOfRelations(),
            {node_type: update() for node_type in sorted(types)},
            (out_dim,),
        )
        self.bases = shared
        self.diagonal_blocks = diagonal_blocks
        self.weighted = weighted
        self._sizes = in_dim, out_dim

    def patterns(self, merged: MergedRelations) -> tuple[list[Edges], list[Groups]]:
        """Return the edges along which rows are averaged, and the groups that are projected."""
        first = self._projects_first(merged)
        return [merged.segments(projected=first)], [merged.projections if first else merged.groups]

    def _projects_first(self, merged: MergedRelations) -> bool:
        """Whether rows are projected before they are averaged, and not after."""
        is_possible = self.weighted and not self.diagonal_blocks and not merged.apart
        return is_possible and merged.project_first(*self._sizes)

    def aggregate_merged(self, inputs: MergedInputs) -> Tensor:
        """Average all relations at once, and project before or after, whichever is cheaper.

        Diagonal blocks are applied after, where every row of a relation meets them once.
        """
        merged, relations, h, _, weights, _ = inputs
        aggregations = self.aggregations_of(relations)
        is_projected = merged.apart or not self.weighted
        matrices = None if is_projected or self.diagonal_blocks else self._matrices(aggregations)
        if matrices is not None and self._projects_first(merged):
            rows = merged.project_rows(h, matrices)
            means = _means(merged, merged.segments(projected=True), rows, weights)
        else:
            means = _means(merged, merged.segments(projected=False), merged.sources(h), weights)
            if matrices is not None:
                means = grouped_product(means, matrices, merged.groups)
            elif not is_projected:
                parts = zip(aggregations, merged.groups, strict=True)
                means = torch.cat([a.project(means[segments]) for a, (_, segments) in parts])
        return _with_edge_terms(merged, aggregations, merged.add_segments(means))

    def _matrices(self, aggregations: Sequence[RelationMean]) -> Tensor:
        """Return the matrices of relations, [relations, in, out]."""
        weights = [aggregation.weight for aggregation in aggregations]
        if self.bases is not None:
            coefficients: list[Tensor] = [w.coefficients for w in weights if isinstance(w, OfBases)]
            return torch.einsum("rb,bio->rio", torch.stack(coefficients), self.bases.matrices)
        linear: list[Tensor] = [w.weight for w in weights if isinstance(w, nn.Linear)]
        return torch.stack(linear).transpose(1, 2)


def _with_edge_terms(
    merged: MergedRelations, aggregations: Sequence[RelationMean], rows: Tensor
) -> Tensor:
    """Add the terms of features of edges to rows [destinations of all types, ...]."""
    terms: dict[str, Tensor] = {}
    for (relation, block), aggregation in zip(merged.blocks.items(), aggregations, strict=False):
        if aggregation.edge_dim:
            term, name = aggregation.edge_term(block, rows.dtype), relation.dst
            terms[name] = terms[name] + term if name in terms else term
    if not terms:
        return rows
    by_type = [
        terms.get(name, torch.zeros_like(rows[place])) for name, place in merged.places.items()
    ]
    return rows + torch.cat(by_type)


def _means(
    merged: MergedRelations,
    segments: Edges,
    rows: Tensor,
    weights: Mapping[Relation, Tensor] | None,
) -> Tensor:
    """Average each segment's rows, or sum them with given weights, to [segments, ...]; a mean is
    over the edges of all servers."""
    if weights is None and merged.equally_likely and merged.is_whole:
        return copy_sum(segments, rows) / merged.degrees().to(rows.dtype).unsqueeze(1)
    by_edge = [
        merged.blocks[relation].mean_weights(rows.dtype) if weights is None else weights[relation]
        for relation in merged.relations
    ]
    return weighted_sum(segments, rows, torch.cat(by_edge))


class RGCN(HGNN):
    """A stack of R-GCN layers with ReLU between them.

    Parameters
    ----------
    target: the type of the roots.
    inputs: by type, the width of its features.
    reads: by layer, in order of computation, the relations that it aggregates and the types of its
        destinations.
    head: whether a linear classifier follows the last layer, which is then as wide as the others.
    input_weights: whether there are input projections and matrices of the first layer. Without
        them, input rows play the part of the rows of ``W_r`` for one-hot inputs (section 2.2).
    edges: by relation whose edges' features are read, the width of these.
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
        bases: int = 0,
        diagonal_blocks: int = 0,
        root_weight: bool = True,
        head: bool = False,
        input_weights: bool = True,
        edges: Mapping[Relation, int] = NO_EDGES,
    ) -> None:
        last = len(reads) - 1
        layers = []
        for index, (relations, types) in enumerate(reads):
            classifies = index == last and not head
            layers.append(
                RGCNLayer(
                    relations,
                    types,
                    hidden,
                    out_dim if classifies else hidden,
                    bases=bases,
                    # Diagonal blocks need not divide the number of classes.
                    diagonal_blocks=0 if classifies else diagonal_blocks,
                    root_weight=root_weight,
                    activation=None if classifies else torch.relu,
                    weighted=input_weights or index > 0,
                    edges=edges,
                )
            )
        classifier = make_head(hidden, out_dim) if head else None
        super().__init__(target, inputs, hidden, layers, classifier, dropout, input_weights)
