"""Input rows by type: features are there, learnable rows may be waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from hopper.engines.accumulate import InputRowsByType
from hopper.engines.model_reads import ModelReads
from hopper.hetero.learnable import LeafRows

NODES = {name: np.array([0, 1]) for name in ("author", "both", "paper")}


class Late(LeafRows):
    """Learnable rows that tell when they are read."""

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
