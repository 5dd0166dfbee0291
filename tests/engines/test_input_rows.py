"""Input rows by type: features are there, learnable rows may be waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hopper.engines.micro_batch import InputRowsByType
from hopper.engines.request import ModelReads
from hopper.hetero.learnable import Leaf, LeafRows

NODES = {name: np.array([0, 1]) for name in ("author", "both", "paper")}


class Late(LeafRows):
    """Learnable rows that record when they are read."""

    def __init__(self) -> None:
        super().__init__({}, {})
        self.read: list[str] = []

    def of(self, node_type: str, ids: Any) -> Tensor:
        self.read.append(node_type)
        return torch.full((len(ids), 3), 7.0)


def test_types_with_features_alone_come_first_and_wait_for_nothing() -> None:
    inputs = {
        name: SimpleNamespace(learned=learned)
        for name, learned in (("author", 3), ("both", 3), ("paper", 0))
    }
    features = {"both": torch.zeros(2, 1), "paper": torch.ones(2, 4)}
    learned = Late()
    reads = cast(ModelReads, SimpleNamespace(inputs=inputs))
    rows = InputRowsByType(reads, NODES, features, learned)
    assert list(rows) == ["paper", "author", "both"]
    assert rows["paper"] is features["paper"]
    assert learned.read == []
    assert rows["both"].tolist() == [[0, 7, 7, 7]] * 2
    assert rows["both"] is rows["both"]
    assert learned.read == ["both"]
    assert rows.get("nobody") is None
    assert len(rows) == 3


def test_a_node_at_several_times_has_one_row_whose_gradients_add_up() -> None:
    """Where nodes repeat, as many rows as a table has are not the table."""
    leaf = Leaf(np.array([3, 5, 8]), torch.arange(6.0).view(3, 2), learns=True)
    reads = cast(ModelReads, SimpleNamespace(inputs={"author": SimpleNamespace(learned=2)}))
    nodes = {"author": np.array([8, 3, 8])}
    learned = LeafRows({"author": leaf}, {"author": "author"})
    rows = InputRowsByType(reads, nodes, {}, learned, repeats=True)["author"]
    assert rows.tolist() == [[4, 5], [0, 1], [4, 5]]
    (rows * torch.tensor([[1.0], [10.0], [100.0]])).sum().backward()
    assert leaf.gradient().tolist() == [[10, 10], [0, 0], [101, 101]]
