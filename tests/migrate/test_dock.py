"""Models that stand on a rank: nothing of one ends up in another, all of it in the sum."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hopper.migrate.dock import Dock
from hopper.migrate.packed_model import PackedModel


def make(moves_parameters: bool) -> tuple[PackedModel, Dock]:
    module = nn.Linear(3, 2).double()
    packed = PackedModel(module)
    packed.clear()
    return packed, Dock(packed, moves_parameters)


def train(dock: Dock, model: int, scale: float) -> None:
    """A gradient of ``scale`` on the bias, and as much loss, for the model aboard."""
    with dock.aboard(model) as packed:
        x = torch.full((1, 3), scale, dtype=torch.float64)
        loss = packed.module(x).sum() * scale
        loss.backward()
        packed.loss += scale


@pytest.mark.parametrize("moves_parameters", [True, False])
def test_what_models_accumulate_is_added_up(moves_parameters: bool) -> None:
    packed, dock = make(moves_parameters)
    before = packed.parameters.clone()
    dock.start([0, 3])
    train(dock, 0, 2.0)
    train(dock, 3, 5.0)
    train(dock, 0, 1.0)
    # Until they are unloaded the replica itself has nothing.
    assert not packed.accumulated.any()
    dock.unload()
    assert packed.loss.item() == 8.0
    assert packed.module.bias.grad.tolist() == [8.0, 8.0]
    assert packed.module.weight.grad[0].tolist() == [4.0 + 25.0 + 1.0] * 3
    assert torch.equal(packed.parameters, before)
    assert packed.module.weight.data_ptr() == packed.parameters.data_ptr()


def test_a_model_keeps_what_it_brought_and_takes_it_along() -> None:
    packed, dock = make(moves_parameters=True)
    guest = dock.empty_buffer()
    count = packed.parameters.numel()
    guest[:count] = 7.0
    guest[count:] = 0.5
    dock.enter(2, guest)
    with dock.aboard(2) as aboard:
        assert (aboard.module.weight == 7.0).all()
    train(dock, 2, 1.0)
    taken = dock.leave(2)
    assert taken is guest
    assert taken[-1].item() == 1.5
    assert not packed.accumulated.any()
    dock.unload()
    assert not packed.accumulated.any()


def test_buffers_are_used_again_and_start_empty() -> None:
    _, dock = make(moves_parameters=True)
    dock.start([1])
    train(dock, 1, 3.0)
    used = dock.leave(1)
    dock.reuse(used)
    dock.start([4])
    again = dock.leave(4)
    assert again.data_ptr() == used.data_ptr()
    assert not again[-9:].any()


def test_an_error_aboard_leaves_the_replica_in_place() -> None:
    packed, dock = make(moves_parameters=True)
    dock.start([0])
    with pytest.raises(RuntimeError), dock.aboard(0):
        raise RuntimeError
    assert packed.module.weight.data_ptr() == packed.parameters.data_ptr()
