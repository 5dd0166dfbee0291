"""Models on one rank: their gradients do not mix, and all of them are added up at the end."""

from __future__ import annotations

import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from hopper.cluster.cluster import Cluster
from hopper.migrate.flat_model import FlatModel
from hopper.migrate.migration import ReplicaBuffers, Transport
from hopper.timing.run_log import RunLog


def make_buffers(moves_parameters: bool) -> tuple[FlatModel, ReplicaBuffers]:
    module = nn.Linear(3, 2).double()
    packed = FlatModel(module)
    packed.clear()
    return packed, ReplicaBuffers(packed, moves_parameters)


def train(buffers: ReplicaBuffers, model: int, scale: float) -> None:
    """A gradient of ``scale`` on the bias, and as much loss, for the loaded model."""
    with buffers.load(model) as packed:
        x = torch.full((1, 3), scale, dtype=torch.float64)
        loss = packed.module(x).sum() * scale
        loss.backward()
        packed.loss += scale


@pytest.mark.parametrize("moves_parameters", [True, False])
def test_gradients_and_losses_of_all_models_are_added_up(moves_parameters: bool) -> None:
    packed, buffers = make_buffers(moves_parameters)
    parameters_before = packed.parameters.clone()
    buffers.start([0, 3])
    train(buffers, 0, 2.0)
    train(buffers, 3, 5.0)
    train(buffers, 0, 1.0)
    # Until they are unloaded the replica itself has nothing.
    assert not packed.accumulated.any()
    buffers.reduce()
    assert packed.loss.item() == 8.0
    assert packed.module.bias.grad.tolist() == [8.0, 8.0]
    assert packed.module.weight.grad[0].tolist() == [4.0 + 25.0 + 1.0] * 3
    assert torch.equal(packed.parameters, parameters_before)
    assert packed.module.weight.data_ptr() == packed.parameters.data_ptr()


def test_a_model_leaves_with_the_buffer_it_came_with() -> None:
    packed, buffers = make_buffers(moves_parameters=True)
    arriving_buffer = buffers.empty()
    count = packed.parameters.numel()
    arriving_buffer[:count] = 7.0
    arriving_buffer[count:] = 0.5
    buffers.present[2] = arriving_buffer
    with buffers.load(2) as loaded_model:
        assert (loaded_model.module.weight == 7.0).all()
    train(buffers, 2, 1.0)
    leaving_buffer = buffers.present.pop(2)
    assert leaving_buffer is arriving_buffer
    assert leaving_buffer[-1].item() == 1.5
    assert not packed.accumulated.any()
    buffers.reduce()
    assert not packed.accumulated.any()


def test_buffers_are_used_again_and_start_empty() -> None:
    _, buffers = make_buffers(moves_parameters=True)
    buffers.start([1])
    train(buffers, 1, 3.0)
    buffer = buffers.present.pop(1)
    buffers.spare.append(buffer)
    buffers.start([4])
    next_buffer = buffers.present.pop(4)
    assert next_buffer.data_ptr() == buffer.data_ptr()
    assert not next_buffer[-9:].any()


def test_an_error_while_a_model_is_loaded_leaves_the_replica_in_place() -> None:
    packed, buffers = make_buffers(moves_parameters=True)
    buffers.start([0])
    with pytest.raises(RuntimeError), buffers.load(0):
        raise RuntimeError
    assert packed.module.weight.data_ptr() == packed.parameters.data_ptr()


class Receive:
    """A message over an intact connection, from a rank that waits for another one."""

    def wait(self, limit: timedelta) -> None:
        time.sleep(limit.total_seconds())
        raise RuntimeError("Timed out")


def test_a_wait_for_a_model_ends_when_another_rank_s_wait_has_failed() -> None:
    cluster: Any = Cluster(0, 4, 1, torch.device("cpu"), timeout=600.0)
    cluster.store = SimpleNamespace(has_failures=lambda: True)
    transport = Transport(cluster, RunLog(None), "model")
    with pytest.raises(RuntimeError, match="another rank's wait failed"):
        transport._wait([Receive()])  # type: ignore[list-item]
    cluster.timeout = 0.1
    with pytest.raises(RuntimeError, match="Timed out"):
        transport._wait([Receive()])  # type: ignore[list-item]
