"""Models that migrate: which buffers hold them, and waits that end with those of other ranks.

That gradients are added up is in tests/engines/test_conformance.py.
"""

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import HashStore

from hopper.cluster.cluster import Cluster
from hopper.cluster.rank_store import OtherFailed, RankStore
from hopper.migrate.flat_model import FlatModel
from hopper.migrate.migration import ReplicaBuffers, Transport
from hopper.timing.run_log import RunLog


@pytest.mark.parametrize("moves_parameters", [True, False])
def test_the_replica_is_itself_again_after_an_error(moves_parameters):
    packed = FlatModel(nn.Linear(3, 2).double())
    buffers = ReplicaBuffers(packed, moves_parameters)
    buffers.start(0)

    def fail() -> None:
        with buffers.load(0) as loaded:
            loaded.module(torch.ones(1, 3).double()).sum().backward()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert packed.module.weight.data_ptr() == packed.parameters.data_ptr()
    assert not packed.accumulated.any()
    buffers.reduce()
    assert packed.module.bias.grad.tolist() == [1.0, 1.0]
    # The buffer is used again, without what it held.
    buffers.start(4)
    assert not buffers.accumulated_in(buffers.present[4]).any()
    assert not buffers.spare
    # What a model brings is added to what was accumulated for it before it came.
    for number in (1.0, 2.0):
        arrived = buffers.empty().fill_(number)
        buffers.join(4, arrived)
        buffers.start(5)
    assert buffers.accumulated_in(buffers.present[4]).tolist() == [3.0] * packed.accumulated.numel()


@pytest.mark.parametrize(
    "module", [nn.ReLU(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())]
)
def test_parameters_of_no_or_of_several_dtypes_are_refused(module):
    with pytest.raises(ValueError, match="one dtype and device expected"):
        FlatModel(module)


class Receive:
    """A message over an intact connection, from a rank that waits for another one."""

    def wait(self, limit: timedelta) -> None:
        time.sleep(limit.total_seconds())
        raise RuntimeError("Timed out")


def test_a_wait_for_a_model_ends_when_another_rank_s_wait_has_failed():
    cluster: Any = Cluster(0, 4, 1, torch.device("cpu"), timeout=600.0)
    cluster.store = store = RankStore(HashStore(), 1, 4, "attempt")
    store.find_missing("receiving a model: Connection reset", timed_out=False, timeout=0.0)
    transport = Transport(cluster, RunLog(None), "model")
    with pytest.raises(OtherFailed, match="rank 1, receiving a model: Connection reset"):
        transport._wait([Receive()])  # type: ignore[list-item]
    cluster.timeout = 0.1
    with pytest.raises(RuntimeError, match="Timed out"):
        transport._wait([Receive()])  # type: ignore[list-item]
