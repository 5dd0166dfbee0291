"""What a process without the partitioned directory learns of the graph, and where it may ask."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import grpc
import numpy as np
import pytest

from cache_server.client import FeatureClient
from cache_server.errors import InvalidRequest
from cache_server.generated import features_pb2, features_pb2_grpc
from cache_server.store.manifest import write_manifest
from cache_server.wire import DESCRIBE_GRAPH, READ_IDS
from tests.cache_server.conftest import Partitioned, Start
from tests.server_processes import REPOSITORY

IDS = {
    ("splits", "train"): "splits/train.npy",
    ("original_ids", "paper"): "maps/paper/original_ids.npy",
    ("global_ids", "paper"): "maps/paper/global_ids.npy",
    ("edge_ids", "author/writes/paper"): "topology/author/writes/paper/edge_ids.npy",
    ("edge_ids", "paper/cites/paper"): "server-0/topology/paper/cites/paper/edge_ids.npy",
}


@pytest.fixture(scope="module")
def arrays(partitioned: Partitioned) -> dict[tuple[str, str], np.ndarray]:
    """Arrays of ids beside the tables, and descriptions of the graph."""
    (partitioned.path / "graph.json").write_text('{"name": "größer"}', encoding="utf-8")
    (partitioned.path / "partition.json").write_text('{"topology": "replicated"}')
    written = {}
    for number, (key, name) in enumerate(IDS.items()):
        file = partitioned.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        written[key] = np.random.default_rng(number).permutation(300 + number)
        np.save(file, written[key])
    return written


def test_descriptions_and_all_ids_are_read(
    arrays: dict[tuple[str, str], np.ndarray], addresses: list[str]
) -> None:
    """A client with a small limit asks for several ranges."""
    with FeatureClient(addresses, deadline=20.0, ids_per_request=100) as client:
        described = client.describe_graph()
        assert json.loads(described.graph) == {"name": "größer"}
        assert json.loads(described.partition) == {"topology": "replicated"}
        described_ids = {(array.kind, array.type): array.count for array in described.ids}
        assert described_ids == {key: ids.size for key, ids in arrays.items()}
        elsewhere = {array.type for array in client.describe_graph(1).ids}
        assert "paper/cites/paper" not in elsewhere
        for (kind, name), ids in arrays.items():
            np.testing.assert_array_equal(client.read_ids(kind, name, 0, ids.size), ids)
            np.testing.assert_array_equal(client.read_ids(kind, name, 290, 7), ids[290:297])
            assert client.read_ids(kind, name, 3, 0).size == 0


@pytest.mark.parametrize(
    ("kind", "name", "first", "count", "text"),
    [
        ("splits", "../splits/train", 0, 1, "has no splits of '../splits/train'; it has train"),
        (
            "shard",
            "train",
            0,
            1,
            "kind: expected one of splits, original_ids, global_ids",
        ),
        ("splits", "train", 299, 2, "expected a range of 300, found 299 and 2"),
        ("splits", "train", -1, 2, "expected a range of 300, found -1 and 2"),
    ],
)
def test_what_a_server_does_not_have_is_refused(
    arrays: object, addresses: list[str], kind: str, name: str, first: int, count: int, text: str
) -> None:
    with FeatureClient(addresses) as client, pytest.raises(InvalidRequest) as caught:
        client.read_ids(kind, name, first, count)
    assert text in str(caught.value)


def test_requests_of_strangers_are_refused(arrays: object, addresses: list[str]) -> None:
    with grpc.insecure_channel(addresses[0]) as channel:
        stub = features_pb2_grpc.FeatureServiceStub(channel)
        request = features_pb2.ReadIdsRequest(kind="splits", type="train", count=2**62)
        for call in (
            lambda: list(stub.ReadIds(request, timeout=20)),
            lambda: list(channel.unary_stream(READ_IDS)(b"\x0a\x7f", timeout=20)),
            lambda: channel.unary_unary(DESCRIBE_GRAPH)(b"\x0a\x7f", timeout=20),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_a_server_without_a_graph_says_so(tmp_path: Path, start: Start) -> None:
    (tmp_path / "server-0").mkdir()
    write_manifest(tmp_path / "server-0", 0, 1, [])
    with (
        FeatureClient([start(tmp_path, 0).address]) as client,
        pytest.raises(InvalidRequest, match=r"server 0 has no readable graph\.json"),
    ):
        client.describe_graph()


FORK = r"""
import os, sys
import numpy as np
from cache_server.client import FeatureClient

client = FeatureClient([sys.argv[1], "127.0.0.1:1", "127.0.0.1:1"], deadline=20.0)

def fetch():
    out = np.empty((2, 5), np.float32)
    client.fetch_rows("features", "paper", {0: np.array([3, 1])}, out, {0: slice(None)})
    os.write(1, f"{out[:, 0].tolist()}\n".encode())

if sys.argv[2] == "used":
    fetch()
child = os.fork()
fetch()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


@pytest.mark.parametrize("before", ["unused", "used"])
def test_a_client_is_used_in_a_process_that_was_forked_since(
    partitioned: Partitioned, addresses: list[str], before: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, addresses[0], before],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=60, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = partitioned.rows["features", "paper"][[3, 1], 0].tolist()
    assert done.stdout.splitlines() == [str(expected)] * (2 + (before == "used"))
