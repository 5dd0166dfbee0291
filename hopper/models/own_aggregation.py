"""A relational model whose AGG_r is the user's own (Heta, section 7: the class HGNN)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch
from torch import nn

from hopper.errors import ConfigError
from hopper.graph.schema import Relation
from hopper.models.layer import Layer
from hopper.models.relational import (
    HGNN,
    Combination,
    MeanOfPresentRelations,
    MeanOfRelations,
    RelationLayer,
    SumOfRelations,
    make_head,
)
from hopper.models.rgcn import Bias, RootWeight

COMBINATIONS: Final[dict[str, type[Combination]]] = {
    "sum": SumOfRelations,
    "mean": MeanOfRelations,
    "mean_of_present": MeanOfPresentRelations,
}


class OwnAggregation(HGNN):
    """A stack of layers with an AGG_r of one's own, ReLU between them, and a linear classifier;
    parameters as those of :class:`hopper.models.rgcn.RGCN`, and

    Parameters
    ----------
    aggregate: makes the AGG_r of a relation from the widths of its input and output.
    combine: AGG_all, one of :data:`COMBINATIONS`.
    root_weight: whether a node's own row of the layer before enters its new one.

    Raises
    ------
    ConfigError: what ``aggregate`` makes is no :class:`hopper.models.layer.Layer`.
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
        aggregate: Callable[[int, int], nn.Module],
        combine: str,
        root_weight: bool,
    ) -> None:
        layers = []
        for relations, types in reads:
            updates = {
                each: RootWeight(hidden, hidden, torch.relu)
                if root_weight
                else Bias(hidden, torch.relu)
                for each in sorted(types)
            }
            layers.append(
                RelationLayer(
                    {relation: _made(aggregate, hidden) for relation in sorted(relations)},
                    COMBINATIONS[combine](),
                    updates,
                    (hidden,),
                )
            )
        super().__init__(target, inputs, hidden, layers, make_head(hidden, out_dim), dropout)


def _made(aggregate: Callable[[int, int], nn.Module], width: int) -> Layer:
    found = aggregate(width, width)
    if not isinstance(found, Layer):
        raise ConfigError(
            f"model.aggregate: expected a subclass of hopper.models.Layer, made {type(found)!r}"
        )
    return found
