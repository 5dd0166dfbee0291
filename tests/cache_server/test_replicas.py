"""Of several servers of one part, any is asked, and another one when it fails."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cache_server.client import FeatureClient
from cache_server.errors import InvalidRequest, ServerUnavailable
from cache_server.service.server import FeatureServer
from cache_server.store.manifest import set_division
from cache_server.store.shard import Shard
from hopper.config import make_config
from tests.cache_server.conftest import Partitioned, Start
from tests.tcp_proxy import TcpProxy

IDS = np.arange(40)


def fetch(client: FeatureClient, partitioned: Partitioned) -> None:
    """Fetch rows and check that they are the right ones."""
    out = np.empty((IDS.size, 5), np.float32)
    client.fetch_rows("features", "paper", {0: IDS}, out, {0: slice(None)})
    np.testing.assert_array_equal(out, partitioned.rows["features", "paper"][IDS])


def client_of(addresses: list[str], deadline: float = 10.0, division: str = "") -> FeatureClient:
    """Return a client of the first shard's servers, and of two others that nobody asks."""
    return FeatureClient(
        [",".join(addresses), "127.0.0.1:1", "127.0.0.1:1"], deadline=deadline, division=division
    )


@pytest.fixture
def replicas(partitioned: Partitioned) -> Iterator[list[FeatureServer]]:
    """Two servers of the first shard, in this process."""
    shards = [Shard.open(partitioned.path / "server-0") for _ in range(2)]
    servers = [FeatureServer(shard, "127.0.0.1:0") for shard in shards]
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.stop(1.0)


@pytest.mark.parametrize("gone", [0, 1])
def test_the_other_replica_is_asked_once_one_is_gone(
    partitioned: Partitioned, replicas: list[FeatureServer], gone: int
) -> None:
    with client_of([server.address for server in replicas]) as client:
        fetch(client, partitioned)
        replicas[gone].stop(0.0)
        for _ in range(4):
            fetch(client, partitioned)
        replicas[1 - gone].stop(0.0)
        client.deadline = 0.5
        with pytest.raises(ServerUnavailable, match=r"unavailable in \d+ attempts"):
            fetch(client, partitioned)


def test_calls_leave_a_replica_that_hangs(partitioned: Partitioned, start: Start) -> None:
    """Two calls that fail on the same replica must not turn back to it."""
    servers = [start(partitioned.path, 0) for _ in range(2)]
    with (
        client_of([server.address for server in servers], deadline=3.0) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        for server in servers:
            server.process.send_signal(signal.SIGSTOP)
            for call in [pool.submit(fetch, client, partitioned) for _ in range(2)]:
                call.result()
            server.process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("part", [0, 1])
def test_a_server_that_takes_the_address_of_another_gives_no_rows(
    partitioned: Partitioned, tmp_path: Path, part: int
) -> None:
    """The client has asked the right server before. The new one has another division, or another
    part whose rows have the same ids."""
    running = []
    for name, server, division in (("right", 0, "abcd"), ("wrong", part, "abcd" if part else "ef")):
        folder = Path(shutil.copytree(partitioned.path / "server-0", tmp_path / name))
        set_division(folder, division)
        manifest = json.loads((folder / "shard.json").read_text())
        (folder / "shard.json").write_text(json.dumps(manifest | {"server": server}))
        running.append(FeatureServer(Shard.open(folder), "127.0.0.1:0"))
        running[-1].start()
    right, wrong = running
    try:
        with (
            TcpProxy(right.address) as proxy,
            client_of([proxy.address], division="abcd") as client,
        ):
            fetch(client, partitioned)
            proxy.lead_to(wrong.address)
            with pytest.raises(InvalidRequest, match=r"expected server 0 of the division abcd"):
                fetch(client, partitioned)
    finally:
        for feature_server in running:
            feature_server.stop(1.0)


def test_replicas_are_written_as_lists_or_texts() -> None:
    for servers in ([["a:1", "b:1"], "c:1"], ["a:1,b:1", ["c:1"]]):
        values = {"data": {"partitioned": "parts"}, "cluster": {"servers": servers}}
        assert make_config(values).cluster.servers == ["a:1,b:1", "c:1"]
