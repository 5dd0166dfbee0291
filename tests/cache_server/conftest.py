"""A partitioned directory of three servers, and servers over it, here and in processes."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from cache_server.client import FeatureClient
from cache_server.service.server import FeatureServer
from cache_server.store.manifest import TableSpec, write_manifest
from cache_server.store.shard import Shard
from tests.server_processes import RunningServer, Servers

OFFSETS = {"paper": [0, 40, 90, 150], "author": [0, 30, 30, 55]}
DIMS = {"paper": (5, "float32"), "author": (3, "float16")}
IDS = {
    ("splits", "train"): "splits/train.npy",
    ("original_ids", "paper"): "maps/paper/original_ids.npy",
    ("global_ids", "paper"): "maps/paper/global_ids.npy",
    ("edge_ids", "author/writes/paper"): "topology/author/writes/paper/edge_ids.npy",
    ("edge_ids", "paper/cites/paper"): "server-0/topology/paper/cites/paper/edge_ids.npy",
}
"""arrays of ids and their files; only server 0 has the last one"""


@dataclass
class Partitioned:
    """A partitioned directory, the rows of all servers by global id for each (kind, type), and the
    arrays of ids."""

    path: Path
    rows: dict[tuple[str, str], NDArray[Any]]
    ids: dict[tuple[str, str], NDArray[Any]]

    servers = 3

    def split(self, type: str, ids: NDArray[np.int64]) -> tuple[dict[int, Any], dict[int, Any]]:
        """Return (ids per server, places per server) for :meth:`FeatureClient.fetch_rows`."""
        home = np.searchsorted(OFFSETS[type], ids, side="right") - 1
        places = {s: np.flatnonzero(home == s) for s in range(self.servers)}
        return {s: ids[place] for s, place in places.items()}, places


def write_table(folder: Path, kind: str, type: str, first: int, rows: NDArray[Any]) -> TableSpec:
    """Write a table of a server and return its entry of the manifest."""
    file = folder / kind / f"{type}.npy"
    file.parent.mkdir(parents=True, exist_ok=True)
    np.save(file, rows)
    facts = {"kind": kind, "type": type, "file": f"{kind}/{type}.npy", "dtype": rows.dtype.name}
    dim = rows.shape[1] if rows.ndim > 1 else 1
    return TableSpec(first_id=first, count=len(rows), dim=dim, **facts)


@pytest.fixture(scope="session")
def partitioned(tmp_path_factory) -> Partitioned:
    """Two node types with features (server 1 has no author), and labels of papers."""
    path, rng = tmp_path_factory.mktemp("partitioned"), np.random.default_rng(7)
    rows: dict[tuple[str, str], NDArray[Any]] = {}
    for type, (dim, dtype) in DIMS.items():
        rows["features", type] = rng.standard_normal((OFFSETS[type][-1], dim)).astype(dtype)
    rows["labels", "paper"] = rng.integers(-1, 9, OFFSETS["paper"][-1])
    for server in range(3):
        folder, specs = path / f"server-{server}", []
        for (kind, type), table in rows.items():
            first, last = OFFSETS[type][server : server + 2]
            specs.append(write_table(folder, kind, type, first, table[first:last]))
        write_manifest(folder, server, 3, specs)
    (path / "graph.json").write_text('{"name": "größer"}', encoding="utf-8")
    (path / "partition.json").write_text('{"topology": "replicated"}')
    ids = {}
    for number, (key, name) in enumerate(IDS.items()):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        ids[key] = rng.permutation(300 + number)
        np.save(path / name, ids[key].astype(np.int32 if number % 2 else np.int64))
    return Partitioned(path, rows, ids)


def write_shard(path: Path, name: str, rows: NDArray[Any]) -> Path:
    """Write a partitioned directory of one server with one table of features."""
    folder = path / "server-0"
    write_manifest(folder, 0, 1, [write_table(folder, "features", name, 0, rows)])
    return path


def fetch(client: FeatureClient, ids: Any, dim: int = 5, server: int = 0) -> NDArray[np.float32]:
    """Fetch rows of papers from one server."""
    out = np.zeros((len(ids), dim), np.float32)
    client.fetch_rows("features", "paper", {server: np.array(ids)}, out, {server: slice(None)})
    return out


Answer = Callable[[bytes, grpc.ServicerContext], Iterator[bytes]]


class ScriptedServer(grpc.GenericRpcHandler):
    """A server in this process that answers methods as a test tells it."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self._answers = answers
        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        answer = self._answers.get(details.method)
        return answer and grpc.unary_stream_rpc_method_handler(answer)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.stop(0).wait(5)


Serve = Callable[..., FeatureServer]


@pytest.fixture
def serve(partitioned) -> Iterator[Serve]:
    """A function that starts a server in this process, of the first shard unless told."""
    running = []

    def start(shard: Shard | Path | None = None, **options: Any) -> FeatureServer:
        if not isinstance(shard, Shard):
            shard = Shard.open(shard or partitioned.path / "server-0")
        server = FeatureServer(shard, options.pop("listen", "127.0.0.1:0"), **options)
        server.start()
        running.append(server)
        return server

    yield start
    for server in running:
        assert server.stop(5.0)


Start = Callable[..., RunningServer]


@pytest.fixture
def start(tmp_path) -> Iterator[Start]:
    """A function that starts server processes for one test alone, which may stop or kill them."""
    servers = Servers(tmp_path)
    yield servers.start
    servers.stop()


@pytest.fixture(scope="session")
def running(partitioned, tmp_path_factory) -> Iterator[list[RunningServer]]:
    """All three servers, shared by the tests that leave them as they are."""
    servers = Servers(tmp_path_factory.mktemp("ports"))
    yield [servers.start(partitioned.path, server) for server in range(3)]
    servers.stop()


@pytest.fixture(scope="session")
def addresses(running) -> list[str]:
    return [server.address for server in running]


@pytest.fixture
def client(addresses) -> Iterator[FeatureClient]:
    """A client of all three servers."""
    with FeatureClient(addresses, deadline=10.0) as client:
        yield client


def ends_within(pid: int, limit: float) -> bool:
    """Tell whether a process (not a child of this one) ends within a limit."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        try:
            # An orphan that nobody has reaped yet has ended too.
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False
