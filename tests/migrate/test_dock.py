"""Models on one rank: their gradients do not mix, and all of them are added up at the end."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hopper.migrate.dock import Dock
from hopper.migrate.packed_model import PackedModel


def make_dock(moves_parameters: bool) -> tuple[PackedModel, Dock]:
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
def test_gradients_and_losses_of_all_models_are_added_up(moves_parameters: bool) -> None:
    packed, dock = make_dock(moves_parameters)
    parameters_before = packed.parameters.clone()
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
    assert torch.equal(packed.parameters, parameters_before)
    assert packed.module.weight.data_ptr() == packed.parameters.data_ptr()


def test_a_model_leaves_with_the_buffer_it_came_with() -> None:
    packed, dock = make_dock(moves_parameters=True)
    arriving_buffer = dock.empty_buffer()
    count = packed.parameters.numel()
    arriving_buffer[:count] = 7.0
    arriving_buffer[count:] = 0.5
    dock.enter(2, arriving_buffer)
    with dock.aboard(2) as loaded_model:
        assert (loaded_model.module.weight == 7.0).all()
    train(dock, 2, 1.0)
    leaving_buffer = dock.leave(2)
    assert leaving_buffer is arriving_buffer
    assert leaving_buffer[-1].item() == 1.5
    assert not packed.accumulated.any()
    dock.unload()
    assert not packed.accumulated.any()


def test_buffers_are_used_again_and_start_empty() -> None:
    _, dock = make_dock(moves_parameters=True)
    dock.start([1])
    train(dock, 1, 3.0)
    buffer = dock.leave(1)
    dock.reuse(buffer)
    dock.start([4])
    next_buffer = dock.leave(4)
    assert next_buffer.data_ptr() == buffer.data_ptr()
    assert not next_buffer[-9:].any()


def test_an_error_aboard_leaves_the_replica_in_place() -> None:
    packed, dock = make_dock(moves_parameters=True)
    dock.start([0])
    with pytest.raises(RuntimeError), dock.aboard(0):
        raise RuntimeError
    assert packed.module.weight.data_ptr() == packed.parameters.data_ptr()
