"""What a user's own AGG_r and AGG_all must be, and how a mistake is named."""

import pytest
import torch
from torch import Tensor, nn

from hopper.errors import ConfigError
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.models import Layer, build_typed_model
from hopper.models.layer import SumLayer

RELATION = Relation("author", "writes", "paper")


class NoLayer(nn.Linear):
    pass


class WithUpdate(Layer):
    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()

    def update(self, h_dst: Tensor, combined: Tensor) -> Tensor:
        return combined


class OwnTerm(SumLayer):
    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()

    def own_term(self, block: Block, h_dst: Tensor) -> Tensor | None:
        return h_dst


class OfThree(Layer):
    def __init__(self, in_dim: int, out_dim: int, heads: int) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("aggregate", "combine", "message"),
    [
        ("NoLayer", "sum", "aggregate: expected a subclass of hopper.models.Layer"),
        ("WithUpdate", "sum", "aggregate: .*WithUpdate.* has an update.. of its own"),
        ("OwnTerm", "sum", "aggregate: .*OwnTerm.* has an own_term..; expected reads_destination"),
        ("OfThree", "sum", "aggregate: .* cannot be made from the widths of input and output"),
        ("Missing", "sum", "model.aggregate: .*Missing: module .* has no 'Missing'"),
        (
            "gated_aggregation:GatedAggregation",
            "torch.nn:Bilinear",
            "combine: .* the width of rows",
        ),
        ("gated_aggregation:GatedAggregation", "torch.nn:Identity", "subclass of .*Combination"),
    ],
)
def test_a_mistake_is_named(aggregate, combine, message):
    name = aggregate if ":" in aggregate else f"{__name__}:{aggregate}"
    with pytest.raises(ConfigError, match=message):
        build_typed_model(
            "hgnn",
            target="paper",
            inputs={"paper": 4, "author": 3},
            reads=[((RELATION,), ("paper",))],
            out_dim=2,
            hidden=8,
            dtype=torch.float64,
            aggregate=name,
            combine=combine,
            root_weight=True,
        )
