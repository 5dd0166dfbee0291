"""Counters of a network interface around a period."""

from __future__ import annotations

import socket

import pytest
import torch

from hopper.cluster import Cluster
from hopper.config import make_config
from hopper.errors import ConfigError
from hopper.launch.run import train
from hopper.train.network_counter import NetworkCounter, sent_bytes


@pytest.fixture
def single_rank() -> Cluster:
    """The cluster of a single rank."""
    return Cluster(0, 1, 1, torch.device("cpu"), 5.0)


def test_what_is_sent_in_a_period_is_counted(single_rank: Cluster) -> None:
    counter = NetworkCounter("lo", single_rank)
    counter.start("epoch 0")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as sender,
    ):
        receiver, _ = listener.accept()
        with receiver:
            sender.sendall(bytes(100_000))
            received = 0
            while received < 100_000:
                received += len(receiver.recv(1 << 16))
    counted_bytes = counter.stop("epoch 0")
    # Other processes may use the interface too.
    assert counted_bytes is not None
    assert counted_bytes > 100_000


def test_nothing_is_read_without_an_interface(single_rank: Cluster) -> None:
    counter = NetworkCounter("", single_rank)
    counter.start("epoch 0")
    assert counter.stop("epoch 0") is None


def test_an_unknown_interface_is_refused_by_name(single_rank: Cluster) -> None:
    text = r"cluster.interface: this machine has no interface 'eth99', only .*lo"
    with pytest.raises(ConfigError, match=text):
        sent_bytes("eth99")
    with pytest.raises(ConfigError, match=text):
        NetworkCounter("eth99", single_rank)
    # Before the graph is looked at, and before anything is started.
    values = {"data": {"partitioned": "/nowhere"}, "cluster": {"interface": "eth99"}}
    with pytest.raises(ConfigError, match=text):
        train(make_config(values))
