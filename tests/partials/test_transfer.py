"""The forms in which rows can travel are the cheapest ones, there and back."""

from typing import Any

import numpy as np
import pytest
import torch

from hopper.errors import RequestError
from hopper.graph import Relation, Topology
from hopper.micrograph.sample import NeighborSampler
from hopper.models import build_model, build_typed_model
from hopper.partials import LayerTransfer, RowLayout, Sums, choose_transfers, make_stack

EDGE = Relation("node", "edge", "node")
NARROW = RowLayout(shape=(16,), row_bytes=128, has_gradient=True)


def one_type(model: torch.nn.Module, in_dim: int, *args: Any) -> list[LayerTransfer]:
    topology = Topology(np.zeros(1, np.int64), np.empty(0, np.int64), *[np.empty(0, np.int64)] * 3)
    sampler = NeighborSampler({EDGE: topology}, {"node": np.empty(0, np.int64)}, "node", [1], 0)
    return choose_transfers(make_stack(model, sampler, in_dim), *args)


def transfers(name: str, in_dim: int, hidden: int, **more: Any) -> list[LayerTransfer]:
    model = build_model(name, in_dim=in_dim, out_dim=40, layers=2, hidden=hidden, **more)
    return one_type(model, in_dim)


def test_rows_of_one_type_travel_in_the_fewest_bytes():
    # Wide features travel projected, and their gradients come back.
    first, second = transfers("sage", 600, 16)
    assert first.layouts == {EDGE: NARROW, Sums("node"): NARROW}
    # 40 classes are wider than 16 hidden values, which are projected behind the sum.
    assert second.layouts == {"node": NARROW, Sums("node"): NARROW}
    assert not first.added_as_read | second.added_as_read
    # Features as they are cross one way only.
    features, classes = RowLayout((100,), 400, False), RowLayout((40,), 320, True)
    for hidden in (64, 128):
        first, second = transfers("gcn", 100, hidden)
        assert first.layouts == {"node": features, Sums("node"): features}
        assert first.added_as_read == {"node"}
        assert second.layouts == {EDGE: classes, Sums("node"): classes}
    # Attention and modulation need every row. Two heads of 40 classes each are wider than what they
    # are made of.
    first, second = transfers("gat", 600, 8, heads=2)
    assert (first.layouts, second.layouts) == (
        {EDGE: RowLayout((2, 8), 128, True)},
        {"node": NARROW},
    )
    kinds = [kind for layer in transfers("film", 600, 8) for kind in layer.layouts]
    assert not any(isinstance(kind, Sums) for kind in kinds)


def test_a_narrower_dtype_takes_fewer_bytes_and_choosing_leaves_the_model_as_it_was():
    model = build_model("sage", in_dim=600, out_dim=40, layers=2, hidden=16, dropout=0.5)
    first, _ = one_type(model, 600, torch.bfloat16)
    assert first.layouts[EDGE] == RowLayout((16,), 64, True)
    assert first.item_bytes == 4
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


CITES, WRITES = Relation("paper", "cites", "paper"), Relation("author", "writes", "paper")
WRITTEN, LIKED = Relation("paper", "by", "author"), Relation("author", "likes", "paper")


def typed(
    name: str, hidden: int, learned: tuple[str, ...] = (), **more: Any
) -> list[LayerTransfer]:
    """Choose the transfers of two layers: papers of 20 numbers, authors of 200, three classes."""
    into_paper = (LIKED, WRITES, CITES)
    reads = [((*into_paper, WRITTEN), ("author", "paper")), (into_paper, ("paper",))]
    inputs = {"author": 200, "paper": 20}
    model = build_typed_model(
        name, target="paper", inputs=inputs, reads=reads, out_dim=3, hidden=hidden, **more
    )
    sampler = NeighborSampler({}, {}, "paper", [1], 0)
    return choose_transfers(make_stack(model, sampler, 0), learned=learned)


def test_narrow_input_rows_cross_one_way_and_are_projected_by_the_reader():
    papers = RowLayout((20,), 80, False)
    first, _ = typed("hgt", 16, heads=2)
    assert (first.layouts, first.raw) == ({"author": NARROW, "paper": papers}, {"paper"})
    # At equal bytes, too: they can travel ahead of the iteration.
    assert typed("hgt", 10, heads=2)[0].layouts["paper"] == papers
    # Rows that are learned have gradients.
    first, _ = typed("hgt", 16, ("paper",), heads=2)
    assert (first.layouts["paper"], first.raw) == (NARROW, set())


def test_few_classes_travel_projected_for_every_relation_or_once_as_they_are_read():
    _, last = typed("rgat", 16, heads=1)
    narrow = RowLayout((1, 3), 24, True)
    assert last.layouts == dict.fromkeys((LIKED, WRITES, CITES), narrow)
    # Authors are read by two relations: one row of 5 numbers is fewer bytes than two of 3.
    _, last = typed("rgat", 5, heads=1)
    assert last.layouts == {"author": RowLayout((5,), 40, True), CITES: narrow}
    assert last.kind_of(LIKED) == last.kind_of(WRITES) == "author"
    # All relations at once read rows as they are.
    assert not last.merged
    first, last = typed("rgat", 16, heads=1, head=True)
    assert (first.merged, last.merged) == (True, True)


def test_relations_that_are_added_up_have_sums():
    first, last = typed("rgcn", 16)
    assert first.merged
    assert first.layouts[Sums("author")] == first.layouts[Sums("paper")] == NARROW
    assert last.layouts[Sums("paper")] == RowLayout((3,), 24, True)
    assert Sums("author") not in last.layouts


def test_a_model_without_parts_is_refused():
    with pytest.raises(RequestError, match=r"train\.engine: cooperative .* given Linear"):
        one_type(torch.nn.Linear(2, 2), 2)
