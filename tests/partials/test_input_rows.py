"""Input rows that travel with the plan: who reads what, and what is sent where."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hopper.graph.block import Nodes
from hopper.partials import IterationPlan, LayerPlan, exchange_input_rows
from hopper.partials.plan import Outgoing

NONE = torch.empty(0, dtype=torch.int64)


class Channel:
    """One rank of two; the other sends the rows of two papers."""

    def __init__(self, world: int = 2) -> None:
        self.world = world
        self.sent: list[Any] = []

    def start_exchange(self, sent: Tensor, *words: Any) -> Any:
        self.sent.append((sent.tolist(), *words))
        return SimpleNamespace(finish=lambda: torch.tensor([1.0, 2.0, 3.0, 4.0]).to(sent.dtype))


def plan(*types: str) -> IterationPlan:
    """Plan one layer for which input rows of some types travel: the papers 7 and 5 go out."""
    layer = LayerPlan(
        *({}, None, {name: Nodes(name, NONE, NONE) for name in types}, None, {}),  # type: ignore
        {"paper": Outgoing([0, 2], torch.tensor([2, 0]), {})},
        {"paper": [0, 2]},
        {},
    )
    return IterationPlan({"paper": np.array([5, 9, 7])}, 1, [layer])


def read(name: str, ids: np.ndarray) -> Tensor:
    assert name == "paper"
    return torch.from_numpy(ids).double().unsqueeze(1).expand(-1, 2)


def test_owners_send_what_others_read() -> None:
    channel: Any = Channel()
    received = exchange_input_rows(channel, plan("paper"), read, torch.float32, "here")
    ((sent, lengths, counts, cause, operation),) = channel.sent
    assert sent == [7, 7, 5, 5]
    # Numbers of two rows, to rank 1 and from it.
    assert (lengths, counts, cause) == ([0, 4], [0, 4], "partial")
    assert operation == "exchanging input rows, here"
    # Rounded for the way alone.
    assert received["paper"].dtype == torch.float64
    assert received["paper"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert not received["paper"].requires_grad


def test_nothing_is_sent_where_no_input_rows_travel_or_a_rank_is_alone() -> None:
    channel: Any = Channel()
    assert exchange_input_rows(channel, plan(), read, torch.float32, "here") == {}
    alone: Any = Channel(world=1)
    assert exchange_input_rows(alone, plan("paper"), read, torch.float32, "here") == {}
    assert channel.sent == alone.sent == []
