"""Counters of a network interface around a period."""

from __future__ import annotations

import socket

import pytest
import torch

from hopper.cluster import Cluster
from hopper.config import make_config
from hopper.errors import ConfigError
from hopper.train.launch import train
from hopper.train.network_counter import NetworkCounter, sent_bytes


@pytest.fixture
def alone() -> Cluster:
    """The only rank."""
    return Cluster(0, 1, 1, torch.device("cpu"), 5.0)


def test_what_is_sent_in_a_period_is_counted(alone: Cluster) -> None:
    counter = NetworkCounter("lo", alone)
    counter.start("epoch 0")
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as sender,
    ):
        receiver, _ = listening.accept()
        with receiver:
            sender.sendall(bytes(100_000))
            received = 0
            while received < 100_000:
                received += len(receiver.recv(1 << 16))
    found = counter.stop("epoch 0")
    # Others may use the interface too.
    assert found is not None
    assert found > 100_000


def test_nothing_is_read_without_an_interface(alone: Cluster) -> None:
    counter = NetworkCounter("", alone)
    counter.start("epoch 0")
    assert counter.stop("epoch 0") is None


def test_an_unknown_interface_is_refused_by_name(alone: Cluster) -> None:
    text = r"cluster.interface: this machine has no interface 'eth99', only .*lo"
    with pytest.raises(ConfigError, match=text):
        sent_bytes("eth99")
    with pytest.raises(ConfigError, match=text):
        NetworkCounter("eth99", alone)
    # Before the graph is looked at, and before anything is started.
    values = {"data": {"partitioned": "/nowhere"}, "cluster": {"interface": "eth99"}}
    with pytest.raises(ConfigError, match=text):
        train(make_config(values))
