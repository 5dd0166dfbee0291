"""A partitioned directory of three servers, and real server processes over it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from cache_server.client import FeatureClient
from cache_server.store.manifest import TableSpec, write_manifest
from tests.server_processes import RunningServer, Servers

OFFSETS = {"paper": [0, 40, 90, 150], "author": [0, 30, 30, 55]}
DIMS = {"paper": (5, "float32"), "author": (3, "float16")}


@dataclass
class Partitioned:
    """A partitioned directory, and the rows of all servers by global id for each (kind, type)."""

    path: Path
    rows: dict[tuple[str, str], NDArray]

    servers = 3

    def split(self, type: str, ids: NDArray[np.int64]) -> tuple[dict, dict]:
        """Return (ids per server, places per server) for :meth:`FeatureClient.fetch_rows`."""
        home = np.searchsorted(OFFSETS[type], ids, side="right") - 1
        places = {s: np.flatnonzero(home == s) for s in range(self.servers)}
        return {s: ids[place] for s, place in places.items()}, places


@pytest.fixture(scope="session")
def partitioned(tmp_path_factory: pytest.TempPathFactory) -> Partitioned:
    """A directory of two node types with features (server 1 has no author) and labels of papers."""
    path = tmp_path_factory.mktemp("partitioned")
    rng = np.random.default_rng(7)
    rows: dict[tuple[str, str], NDArray] = {}
    for type, (dim, dtype) in DIMS.items():
        rows["features", type] = rng.standard_normal((OFFSETS[type][-1], dim)).astype(dtype)
    rows["labels", "paper"] = rng.integers(-1, 9, OFFSETS["paper"][-1])
    for server in range(3):
        folder, specs = path / f"server-{server}", []
        for (kind, type), table in rows.items():
            first, last = OFFSETS[type][server : server + 2]
            file = folder / kind / f"{type}.npy"
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, table[first:last])
            specs.append(
                TableSpec(
                    kind=kind, type=type, file=f"{kind}/{type}.npy",
                    first_id=first, count=last - first,
                    dim=table[:1].size, dtype=table.dtype.name,
                )
            )  # fmt: skip
        write_manifest(folder, server, 3, specs)
    return Partitioned(path, rows)


def write_shard(path: Path, name: str, rows: NDArray) -> Path:
    """Write a partitioned directory of one server with one table of features."""
    folder = path / "server-0"
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}.npy", rows)
    count, dim = rows.shape
    spec = TableSpec(
        kind="features", type=name, file=f"{name}.npy",
        first_id=0, count=count, dim=dim, dtype=rows.dtype.name,
    )  # fmt: skip
    write_manifest(folder, 0, 1, [spec])
    return path


Start = Callable[..., RunningServer]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that starts servers for one test alone, which may stop or kill them."""
    servers = Servers(tmp_path)
    yield servers.start
    servers.stop()


@pytest.fixture(scope="session")
def running(
    partitioned: Partitioned, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[RunningServer]]:
    """All three servers, shared by the tests that leave them as they are."""
    servers = Servers(tmp_path_factory.mktemp("ports"))
    yield [servers.start(partitioned.path, server) for server in range(3)]
    servers.stop()


@pytest.fixture(scope="session")
def addresses(running: list[RunningServer]) -> list[str]:
    return [server.address for server in running]


@pytest.fixture
def client(addresses: list[str]) -> Iterator[FeatureClient]:
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
