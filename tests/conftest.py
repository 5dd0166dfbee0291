"""Fixtures that several folders share: small graphs, feature servers, groups of ranks."""

import gc
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from warnings import catch_warnings

import pytest

from hopper.process.quick_imports import quick_imports

with quick_imports():
    import numba
    import numpy as np
    import torch

    from cache_server.service.server import FeatureServer
    from hopper.bench import train_process
    from hopper.cli import main
    from hopper.graph.directory import GraphDirectory
    from hopper.graph.schema import EdgeType, GraphSchema, Labels, NodeType, Relation
    from hopper.graph.write import GraphWriter
    from hopper.hetero.divide import divide_graph
    from hopper.launch.processes import start_module, stop_processes
    from hopper.partition import build, metis, partition_graph, partitioner
    from tests.data_servers import postgres_database, s3_server
    from tests.rank_pool import RankPool
    from tests.server_processes import PLUG_IN_FOLDERS, Servers, own_path, serve_here

# Until all tests are collected: a sixth of the time of imports would be looking for garbage.
gc.disable()
TESTS = Path(__file__).resolve().parent

# A shell starts what runs in its background with Ctrl-C ignored, nohup with SIGHUP, and so would
# every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.path += map(str, (*PLUG_IN_FOLDERS, TESTS))

# Other workers need the cores that a second thread would wait on. What several threads compute has
# tests that ask for them.
numba.set_num_threads(1)
# numba has launched its threads, and changed OpenMP's number of them.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, then folders with slow tests, so that no long file is left to
    one worker at the end."""
    slow = (
        "train/test_launch_ray.py",
        "engines/test_conformance.py",
        "pyg/test_script.py",
        "train/test_restarts.py",
        "train/test_examples.py",
        "bench/test_emulated_hosts.py",
        "pyg",
        "train",
        "engines",
        "bench",
        "partition",
        "pipeline",
        "ops",
        "cache_server",
        "cluster",
        "cli",
        "rehearsal",
        "graph",
        "docs",
    )
    order = {name: index for index, name in enumerate(slow)}

    def place(item: pytest.Item) -> int:
        file = item.path.relative_to(TESTS)
        return min(order.get(name, len(slow)) for name in (file.as_posix(), file.parts[0]))

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Exclude imported modules and collected tests from collections of garbage.

    Looking through them took a tenth of a worker's processor time.
    """
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000)


@contextmanager
def numba_threads(count: int = numba.config.NUMBA_NUM_THREADS) -> Iterator[None]:
    """Set the number of threads within a ``with`` statement, by default to the most there are."""
    before = numba.get_num_threads()
    numba.set_num_threads(count)
    try:
        yield
    finally:
        numba.set_num_threads(before)


@pytest.fixture(params=["cpu", "cuda"])
def device(request) -> torch.device:
    """The device of arrays and tensors: the CPU, and a GPU if there is one with CuPy."""
    if request.param == "cuda":
        pytest.importorskip("cupy")
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
    return torch.device(request.param)


@pytest.fixture(params=["numpy", "cupy"])
def module(request) -> ModuleType:
    """The library of arrays: NumPy, and CuPy if there is a GPU with it."""
    if request.param == "numpy":
        return np
    cupy: ModuleType = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device")
    return cupy


@pytest.fixture(scope="module", autouse=True)
def _metis_that_starts_soon(request) -> Iterator[None]:
    """METIS is that of pymetis, unless a test names another: that of DGL imports DGL, for seconds.

    The tests of partitions choose as users do.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in () if request.path.parent.name == "partition" else (build, partitioner):
            patch.setattr(module, "choose_backend", _choose_backend)
        yield


def _choose_backend(name: str) -> metis.Backend:
    return metis.choose_backend("pymetis" if name == "auto" else name)


@pytest.fixture(scope="session")
def graph_of(tmp_path_factory) -> Callable[[str], GraphDirectory]:
    """Return a graph of tests/engines/graphs.py, which is written once for all tests."""
    from tests.engines.graphs import GRAPHS

    folder = tmp_path_factory.mktemp("graphs")

    @cache
    def write(name: str) -> GraphDirectory:
        with catch_warnings(action="ignore"):
            return GRAPHS[name](folder / name)

    return write


@pytest.fixture(scope="session")
def parts_of(graph_of, tmp_path_factory) -> Callable[..., Path]:
    """Divide such a graph over two servers, once for all tests, which only read it."""
    folder = tmp_path_factory.mktemp("parts")

    @cache
    def divide(name: str, way: str) -> Path:
        graph, out = graph_of(name), folder / f"{name}, {way}"
        if way == "by relation":
            return divide_graph(graph, out, 2, "meta", layers=2).path
        options = {"features": way} if way == "by-dimension" else {"topology": way}
        return partition_graph(graph, out, 2, "random", **options).path

    return lambda name, way="replicated": divide(name, way)


@pytest.fixture(scope="session")
def community_graph(graph_of) -> GraphDirectory:
    """300 nodes in 6 communities, both directions of every edge, a hub and isolated nodes."""
    return graph_of("items")


@pytest.fixture(scope="session")
def parts(parts_of) -> Path:
    """The community graph over two servers, for tests that only read it."""
    return parts_of("items")


def make_community_graph(
    out: Path,
    *,
    nodes: int,
    feature_dim: int = 10,
    train: int = 83,
    classes: int = 6,
    with_features: bool = True,
) -> GraphDirectory:
    """Write a graph whose features and neighbours tell a node's class.

    Without features all else is the same.
    """
    generator = np.random.default_rng(7)
    community = generator.integers(0, classes, nodes)
    src = generator.integers(0, nodes, 6 * nodes)
    is_inside = generator.random(src.size) < 0.8
    by_community = np.argsort(community, kind="stable")
    starts = np.searchsorted(community[by_community], np.arange(classes + 1))
    inside = starts[community[src]] + (
        generator.random(src.size) * np.diff(starts)[community[src]]
    ).astype(np.int64)
    dst = np.where(is_inside, by_community[inside], generator.integers(0, nodes, src.size))
    src = np.concatenate([src, np.full(nodes // 3, 5)])
    dst = np.concatenate([dst, generator.choice(nodes, nodes // 3, replace=False)])
    lonely = np.array([nodes - 1, nodes - 2])
    keep = (src != dst) & ~np.isin(src, lonely) & ~np.isin(dst, lonely)
    pairs = np.unique(
        np.concatenate([np.stack([src, dst], 1)[keep], np.stack([dst, src], 1)[keep]]), axis=0
    )
    relation = Relation("item", "near", "item")
    ids = generator.permutation(nodes)
    schema = GraphSchema(
        name="community",
        node_types={
            "item": NodeType(nodes, feature_dim, "float32") if with_features else NodeType(nodes)
        },
        relations={relation: EdgeType(len(pairs))},
        target="item",
        labels={"item": Labels("class", classes)},
        splits={"train": train, "val": nodes // 5, "test": nodes // 5},
    )
    with GraphWriter(out, schema) as writer:
        writer.topology(relation, pairs[:, 0], pairs[:, 1])
        centres = generator.standard_normal((classes, feature_dim))
        noise = generator.standard_normal((nodes, feature_dim))
        if with_features:
            writer.features("item")[:] = centres[community] + noise
        writer.labels("item", community.astype(np.int64))
        # Isolated nodes are trained too.
        rest = ids[~np.isin(ids, lonely)]
        writer.split("train", np.sort(np.concatenate([lonely, rest[: train - 2]])))
        writer.split("val", np.sort(rest[train : train + nodes // 5]))
        writer.split("test", np.sort(rest[train + nodes // 5 : train + 2 * (nodes // 5)]))
    return GraphDirectory.open(out)


@pytest.fixture(scope="module")
def serve_partitions(tmp_path_factory) -> Iterator[Callable[..., list[str]]]:
    """Start the feature servers of a partitioned directory; returns their addresses.

    Servers with options of the command are processes of their own. Others, dozens of a module, run
    in the tests' process. Tests that ask for the same directory share its servers.
    """
    processes = Servers(tmp_path_factory.mktemp("servers"))
    running: list[FeatureServer] = []

    @cache
    def start(partitioned: Path, servers: int, *options: str) -> tuple[str, ...]:
        if options:
            started = [processes.start(partitioned, index, *options) for index in range(servers)]
            return tuple(server.address for server in started)
        here = serve_here(partitioned, servers)
        running.extend(here)
        return tuple(server.address for server in here)

    yield lambda *arguments: list(start(*arguments))
    for feature_server in running:
        assert feature_server.stop(1.0)
    processes.stop()


@pytest.fixture(scope="session")
def rank_pool() -> Iterator[RankPool]:
    """Ranks that stay until the session ends."""
    pool = RankPool(own_path, free_ports)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def launched_in_pool(rank_pool) -> Iterator[None]:
    """Ranks that tests of a module launch in this process are those of the pool."""
    with rank_pool.launching():
        yield


@pytest.fixture(scope="session")
def run_ranks(rank_pool, tmp_path_factory) -> Callable[..., list[Any]]:
    """Call a function of a module as every rank of a world; returns what each call has returned.

    Arguments and results travel as JSON.
    """

    def run(work: Callable[..., Any], world: int, *arguments: Any) -> list[Any]:
        folder = tmp_path_factory.mktemp("ranks")
        logs = [folder / f"rank-{rank}.log" for rank in range(world)]
        results = [folder / f"rank-{rank}.json" for rank in range(world)]
        words = f"{work.__module__}:{work.__name__}", json.dumps(arguments)
        codes = rank_pool.run(
            lambda rank: (str(TESTS / "call_rank.py"), str(results[rank]), *words),
            world,
            lambda rank: (logs[rank], logs[rank]),
        )
        failed = [
            f"rank {rank} of {world} ended with {code}:\n{log.read_text(errors='replace')}"
            for rank, (code, log) in enumerate(zip(codes, logs, strict=True))
            if code
        ]
        assert not failed, "\n".join(failed)
        return [json.loads(file.read_text()) for file in results]

    return run


@pytest.fixture(scope="module")
def bench_in_pool(rank_pool) -> Iterator[None]:
    """Runs of ``hopper bench`` on this host are launched here, with ranks of the pool."""

    def launch(module: str, words: list[str], environment: Any, *, log: Path, name: str) -> Any:
        if "--on" in words:
            return start_module(module, words, environment, log=log, name=name)
        with (
            log.open("a") as file,
            redirect_stdout(file),
            redirect_stderr(file),
            rank_pool.launching(),
        ):
            code = main(words)
        return SimpleNamespace(poll=lambda: code)

    def stop_started(processes: list[Any], limit: float) -> None:
        stop_processes([it for it in processes if not isinstance(it, SimpleNamespace)], limit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_process, "start_module", launch)
        patch.setattr(train_process, "stop_processes", stop_started)
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


def free_ports(count: int = 1) -> int:
    """The first of ``count`` free TCP ports in a row.

    They are below the range from which the kernel takes ports of outgoing connections, so that no
    connection takes one of them before the process under test does.
    """
    above = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        first = above // 2 + secrets.randbelow(above // 2 - count)
        with ExitStack() as sockets, suppress(OSError):
            for port in range(first, first + count):
                sockets.enter_context(socket.create_server(("0.0.0.0", port)))
            return first


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root, to mount a small file system")
    words = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    mount = subprocess.run(words, capture_output=True, text=True, check=False)
    if mount.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mount.stderr.strip()}")
    yield folder
    # Lazily, because on a busy machine a process that was killed may still have files open.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def s3() -> Iterator[None]:
    """A real S3 server, which the processes that tests start reach too."""
    with s3_server():
        yield


@pytest.fixture(scope="module")
def bucket(s3) -> str:
    """The address of an empty bucket."""
    from s3fs import S3FileSystem

    S3FileSystem().mkdir(name := f"shop-{secrets.token_hex(4)}")
    return f"s3://{name}"


@pytest.fixture(scope="module")
def postgres_server() -> Iterator[str]:
    """The address, with its password, of a real Postgres server without tables."""
    with postgres_database(free_ports) as address:
        yield address
