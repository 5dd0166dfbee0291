"""A relational model whose AGG_r is a user's class (Heta, section 7: the class HGNN)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import nn

from hopper.errors import ConfigError
from hopper.graph.schema import Relation
from hopper.models.combination import (
    Combination,
    MeanOfPresentRelations,
    MeanOfRelations,
    SumOfRelations,
)
from hopper.models.layer import Layer, SumLayer
from hopper.models.relation_layer import RelationLayer, Update
from hopper.models.relational import HGNN, NO_EDGES, make_head
from hopper.models.rgcn import Bias, RootWeight

COMBINATIONS: Final[dict[str, type[Combination]]] = {
    "sum": SumOfRelations,
    "mean": MeanOfRelations,
    "mean_of_present": MeanOfPresentRelations,
}


class OwnAggregation(HGNN):
    """A stack of layers with a user's AGG_r, ReLU between them, and a linear classifier.

    It takes the parameters of :class:`hopper.models.rgcn.RGCN`, and the following.

    Parameters
    ----------
    aggregate: makes the AGG_r of a relation from the widths of its input and output. If edges'
        features are read, it also takes their width by the keyword ``edge_dim``.
    edges: by relation whose edges' features are read, the width of these.
    combine: AGG_all: one of :data:`COMBINATIONS`, or a function that makes it from the width of
        rows.
    root_weight: whether a node's own row of the previous layer is part of its new row.

    Raises
    ------
    ConfigError: ``aggregate`` or ``combine`` returns something unusable. The message says why.
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
        aggregate: Callable[..., nn.Module],
        combine: type[Combination] | str,
        root_weight: bool,
        edges: Mapping[Relation, int] = NO_EDGES,
    ) -> None:

        def update() -> Update:
            if root_weight:
                return RootWeight(hidden, hidden, torch.relu)
            return Bias(hidden, torch.relu)

        layers = []
        for relations, types in reads:
            updates = {node_type: update() for node_type in sorted(types)}
            aggregations = {
                relation: _make_aggregation(aggregate, hidden, edges.get(relation, 0))
                for relation in sorted(relations)
            }
            combination = _make_combination(combine, hidden)
            layers.append(RelationLayer(aggregations, combination, updates, (hidden,)))
        super().__init__(target, inputs, hidden, layers, make_head(hidden, out_dim), dropout)


def _make_aggregation(aggregate: Callable[..., nn.Module], width: int, edge_dim: int) -> Layer:
    key = "model.aggregate"
    keywords = {"edge_dim": edge_dim} if edge_dim else {}
    try:
        layer = aggregate(width, width, **keywords)
    except TypeError as error:
        more = " and the keyword edge_dim" if edge_dim else ""
        raise ConfigError(
            f"{key}: {aggregate!r} cannot be made from the widths of input and output{more}: "
            f"{error}"
        ) from error
    if not isinstance(layer, Layer):
        raise ConfigError(f"{key}: expected a subclass of hopper.models.Layer, given {aggregate!r}")
    if type(layer).update is not Layer.update:
        raise ConfigError(
            f"{key}: {aggregate!r} has an update() of its own, which nothing calls: new rows are "
            "made of all relations"
        )
    if (
        isinstance(layer, SumLayer)
        and type(layer).own_term is not SumLayer.own_term
        and not layer.reads_destination
    ):
        raise ConfigError(f"{key}: {aggregate!r} has an own_term(); expected reads_destination")
    return layer


def _make_combination(combine: type[Combination] | str, width: int) -> Combination:
    if isinstance(combine, str):
        return COMBINATIONS[combine]()
    try:
        combination = combine(width)
    except TypeError as error:
        raise ConfigError(
            f"model.combine: {combine!r} cannot be made from the width of rows: {error}"
        ) from error
    if not isinstance(combination, Combination):
        raise ConfigError(
            "model.combine: expected a subclass of hopper.models.combination.Combination, given "
            f"{combine!r}"
        )
    return combination
