"""The form of the rows that travel is the cheapest, there and back."""

from __future__ import annotations

import pytest
import torch

from hopper.errors import RequestError
from hopper.models import build_model
from hopper.partials import Wire, choose_wires


def wires(name: str, in_dim: int, hidden: int, **more: int) -> list[Wire]:
    model = build_model(name, in_dim=in_dim, out_dim=40, layers=2, hidden=hidden, **more)
    return choose_wires(model, in_dim)


def test_wide_features_travel_projected_and_their_gradients_come_back() -> None:
    first, second = wires("sage", 600, 16)
    assert first == Wire(projected=True, width=16, row_bytes=128, item_bytes=4, folds=True)
    # 40 classes are wider than 16 hidden values, which are projected behind the sum.
    assert second == Wire(projected=False, width=16, row_bytes=128, item_bytes=4, folds=True)


@pytest.mark.parametrize("hidden", [64, 128])
def test_features_as_they_are_cross_one_way_only(hidden: int) -> None:
    first, second = wires("gcn", 100, hidden)
    assert first == Wire(projected=False, width=100, row_bytes=400, item_bytes=4, folds=True)
    assert second == Wire(projected=True, width=40, row_bytes=320, item_bytes=4, folds=True)


def test_attention_and_modulation_need_every_row() -> None:
    first, second = wires("gat", 600, 8, heads=2)
    assert first == Wire(projected=True, width=16, row_bytes=128, item_bytes=4, folds=False)
    # Two heads of 40 classes each are wider than what they are made of.
    assert second == Wire(projected=False, width=16, row_bytes=128, item_bytes=4, folds=False)
    assert [wire.folds for wire in wires("film", 600, 8)] == [False, False]


def test_a_narrower_dtype_on_the_wire_takes_fewer_bytes() -> None:
    model = build_model("sage", in_dim=600, out_dim=40, layers=2, hidden=16)
    first, _ = choose_wires(model, 600, torch.bfloat16)
    assert first == Wire(projected=True, width=16, row_bytes=64, item_bytes=4, folds=True)


def test_a_model_without_parts_is_refused() -> None:
    with pytest.raises(RequestError, match=r"train\.engine: cooperative .* given Linear"):
        choose_wires(torch.nn.Linear(2, 2), 2)


def test_choosing_leaves_the_model_as_it_was() -> None:
    model = build_model("sage", in_dim=4, out_dim=2, layers=2, hidden=3, dropout=0.5)
    choose_wires(model, 4)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
