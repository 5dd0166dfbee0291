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


def make_buffers(moves_parameters: bool = True) -> tuple[FlatModel, ReplicaBuffers]:
    packed = FlatModel(nn.Linear(3, 2).double())
    return packed, ReplicaBuffers(packed, moves_parameters)


def train(buffers: ReplicaBuffers, model: int, scale: float) -> None:
    """A gradient of ``scale`` on the bias, and as much loss, for the loaded model."""
    with buffers.load(model) as packed:
        x = torch.full((1, 3), scale, dtype=torch.float64)
        (packed.module(x).sum() * scale).backward()
        packed.loss += scale


@pytest.mark.parametrize("moves_parameters", [True, False])
def test_gradients_and_losses_of_all_models_are_added_up(moves_parameters: bool) -> None:
    packed, buffers = make_buffers(moves_parameters)
    parameters_before = packed.parameters.clone()
    for model in (0, 3):
        buffers.start(model)
    for model, scale in ((0, 2.0), (3, 5.0), (0, 1.0)):
        train(buffers, model, scale)
    with pytest.raises(RuntimeError), buffers.load(0):
        raise RuntimeError
    # Until they are unloaded the replica itself has nothing, after an error too.
    assert packed.module.weight.data_ptr() == packed.parameters.data_ptr()
    assert not packed.accumulated.any()
    buffers.reduce()
    assert packed.loss.item() == 8.0
    assert packed.module.bias.grad.tolist() == [8.0, 8.0]
    assert packed.module.weight.grad[0].tolist() == [4.0 + 25.0 + 1.0] * 3
    assert torch.equal(packed.parameters, parameters_before)


def test_a_model_leaves_with_the_buffer_it_came_with_which_is_then_used_again() -> None:
    packed, buffers = make_buffers()
    count, buffer = packed.parameters.numel(), buffers.empty()
    buffer[:count], buffer[count:] = 7.0, 0.5
    buffers.present[2] = buffer
    with buffers.load(2) as loaded_model:
        assert (loaded_model.module.weight == 7.0).all()
    train(buffers, 2, 1.0)
    assert buffers.present.pop(2) is buffer
    assert buffer[-1].item() == 1.5
    buffers.reduce()
    assert not packed.accumulated.any()
    buffers.spare.append(buffer)
    buffers.start(4)
    assert buffers.present[4] is buffer
    assert not buffer[count:].any()
    assert torch.equal(buffer[:count], packed.parameters)


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
