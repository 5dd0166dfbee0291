"""Ranks meet on an interface that reaches all of them, and tell in a line who does not come.

Hosts whose names lead to their loopback address are emulated, and skipped with the reason where
network namespaces cannot be had.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from hopper.bench.emulate.request import Request
from hopper.cluster.cluster import Cluster
from hopper.cluster.rank_network import VARIABLE, Interface, Way, choose_interface
from hopper.errors import ConfigError, RankSilent
from hopper.partition import partition_graph
from tests.bench.test_emulated_hosts import build_or_skip
from tests.conftest import free_ports
from tests.server_processes import own_path

JOIN_RANK = Path(__file__).with_name("join_rank.py")
HOSTS, LIMIT, MASTER = 3, 180.0, "node0"
HERE = Way("127.0.0.1", "127.0.1.1")


@pytest.fixture
def interfaces(monkeypatch) -> dict[str, list[Any]]:
    """The interfaces of this machine, which a test may change."""
    monkeypatch.delenv(VARIABLE, raising=False)
    addresses = {"lo": "127.0.0.1", "eth0": "10.0.0.8", "eth1": "8.8.8.8"}
    interfaces = {
        name: [
            SimpleNamespace(family=socket.AF_INET, address=address),
            SimpleNamespace(family=socket.AF_INET6, address=f"fe80::1%{name}"),
            SimpleNamespace(family=socket.AF_PACKET, address="02:42:ac:11:00:02"),
        ]
        for name, address in addresses.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: interfaces)
    return interfaces


@pytest.mark.parametrize(
    ("way", "seen", "name"),
    [
        (Way("10.0.0.8", "10.0.0.1"), ["127.0.1.1", "10.0.0.1"], "eth0"),
        (HERE, ["127.0.1.1", "10.0.0.8"], "eth0"),
        (HERE, ["127.0.1.1", "127.0.1.1"], "lo"),
        (Way("fe80::1", "fe80::2"), ["fe80::2"], "lo"),
    ],
)
@pytest.mark.usefixtures("interfaces")
def test_a_rank_takes_the_interface_to_rank_0(way, seen, name):
    assert choose_interface(way, seen).name == name


@pytest.mark.usefixtures("interfaces")
def test_an_interface_that_is_not_there_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match=r"at 10\.0\.0\.1, .* \(lo \(127\.0\.0\.1\), eth0"):
        choose_interface(HERE, ["10.0.0.1"])
    monkeypatch.setenv(VARIABLE, "eth1,eth0")
    assert choose_interface(HERE) == Interface("eth1", "8.8.8.8")
    monkeypatch.setenv(VARIABLE, "eth9")
    with pytest.raises(ConfigError, match=r"^GLOO_SOCKET_IFNAME: .*eth0 .*, got 'eth9'$"):
        choose_interface(HERE)


def test_ranks_on_a_public_address_are_refused():
    Interface("eth0", "10.0.0.8").refuse_public()
    with pytest.raises(ConfigError, match=r"^cluster\.insecure: .* 8\.8\.8\.8 \(interface eth1\)"):
        Interface("eth1", "8.8.8.8").refuse_public()


def test_a_rank_that_never_starts_is_named(monkeypatch):
    port = str(free_ports())
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RankSilent) as error:
        Cluster.join(1, torch.device("cpu"), 60, 0.5)
    assert str(error.value) == (
        "rank 0, waiting for rank 1: meeting the other ranks did not finish within 0.5 s"
    )


class NamedHosts:
    """Emulated hosts. On each, its name leads to 127.0.1.1, and those of the others to them."""

    def __init__(self, hosts: Any) -> None:
        self._hosts = hosts
        self.addresses = [host.network.address for host in hosts]
        self._processes: list[subprocess.Popen[str]] = []
        self._folders = [Path("/etc/netns") / host.network.namespace for host in hosts]

    def __enter__(self) -> NamedHosts:
        names = [f"{address} node{i}\n" for i, address in enumerate(self.addresses)]
        for own, folder in enumerate(self._folders):
            others = [name for i, name in enumerate(names) if i != own]
            folder.mkdir(parents=True)
            text = f"127.0.0.1 localhost\n127.0.1.1 node{own} {socket.gethostname()}\n"
            (folder / "hosts").write_text(text + "".join(others))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        for folder in self._folders:
            shutil.rmtree(folder)

    def start(self, host: int, *words: object, **environment: str) -> subprocess.Popen[str]:
        """Start Python on a host."""
        clean = {key: value for key, value in os.environ.items() if not key.endswith("_IFNAME")}
        threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        process = subprocess.Popen(
            [*self._hosts[host].prefix, sys.executable, *map(str, words)],
            env=clean | threads | {"PYTHONPATH": own_path()} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._processes.append(process)
        return process

    def start_ranks(self, folder: Path, start_timeout: float, **environment: str) -> None:
        """Run join_rank.py on all hosts to its end."""
        common = {"MASTER_ADDR": MASTER, "MASTER_PORT": "30000", "WORLD_SIZE": str(HOSTS)}
        words = [(JOIN_RANK, folder / str(i), start_timeout) for i in range(HOSTS)]
        ranks = [
            self.start(i, *words[i], RANK=str(i), **common, **environment) for i in range(HOSTS)
        ]
        for rank in ranks:
            printed, _ = rank.communicate(timeout=LIMIT)
            assert rank.returncode == 0, printed


@pytest.fixture(scope="module")
def hosts() -> Iterator[NamedHosts]:
    with build_or_skip(Request(HOSTS)) as cluster, NamedHosts(cluster.hosts) as named:
        yield named


def test_ranks_of_hosts_whose_names_lead_to_loopback_meet(hosts, community_graph, tmp_path):
    hosts.start_ranks(tmp_path, 120.0)
    for rank in range(HOSTS):
        assert (tmp_path / str(rank)).read_text() == f"added up {HOSTS}"
    parts = partition_graph(community_graph, tmp_path / "parts", HOSTS, "random").path
    config = tmp_path / "config.json"
    values = {
        "data": {"partitioned": str(parts)},
        "train": {"device": "cpu", "run_dir": str(tmp_path / "run")},
        "cluster": {"insecure": True, "servers": [f"node{i}:20000" for i in range(HOSTS)]},
    }
    config.write_text(json.dumps(values))
    doctor = hosts.start(0, "-m", "hopper.cli", "doctor", config, COLUMNS="400")
    printed, _ = doctor.communicate(timeout=LIMIT)
    way = f"ranks here will use eth0 ({hosts.addresses[0]}), on which they reach node1"
    assert f"{way}; this machine's name, {socket.gethostname()}, leads to 127.0.1.1" in printed


def test_ranks_that_cannot_connect_say_so_in_time(hosts, tmp_path):
    """gloo waits for ever for a rank that has given up to connect."""
    hosts.start_ranks(tmp_path, 10.0, **{VARIABLE: "lo"})
    for rank in range(HOSTS):
        message = (tmp_path / str(rank)).read_text()
        assert "\n" not in message
        assert f"rank {rank}" in message
        assert "connecting to the other ranks through lo (127.0.0.1)" in message
        assert "uses lo (127.0.0.1)" in message
        assert "set GLOO_SOCKET_IFNAME=<interface" in message
