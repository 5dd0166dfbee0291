"""A flooded server keeps to its bound on memory, and tells clients when to ask again."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from cache_server.client import FeatureClient
from cache_server.manifest import TableSpec, write_manifest
from cache_server.memory_in_flight import MemoryInFlight, NoRoom
from cache_server.retry import RETRY_AFTER, read_hint, retry_hint
from cache_server.wire import FETCH_ROWS
from tests.cache_server.test_abuse import request_for
from tests.cache_server.test_metrics import scrape

LIMIT = 60.0
BOUND = 64 << 20
SLACK = 64 << 20
"""what glibc and gRPC keep beside it"""
ROWS, DIM = 64, 1 << 19


@pytest.fixture(scope="module")
def huge_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A server's folder with rows of 2 MiB. It keeps 6 MiB for each reply that nobody reads."""
    path = tmp_path_factory.mktemp("huge")
    folder = path / "server-0"
    (folder / "features").mkdir(parents=True)
    table = np.lib.format.open_memmap(
        folder / "features" / "paper.npy", "w+", np.float32, (ROWS, DIM)
    )
    table[:] = np.arange(ROWS)[:, None]
    table.flush()
    spec = TableSpec(
        kind="features", type="paper", file="features/paper.npy",
        first_id=0, count=ROWS, dim=DIM, dtype="float32",
    )  # fmt: skip
    write_manifest(folder, 0, 1, [spec])
    return path


def flood(stack: ExitStack, address: str) -> list[Any]:
    """Ask for large replies that nobody reads: 12 connections, 8 replies on each."""
    request = request_for(list(range(ROWS)) * 100, dim=DIM)
    calls = []
    for _ in range(12):
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = stack.enter_context(grpc.insecure_channel(address, options))
        calls += [channel.unary_stream(FETCH_ROWS)(request, timeout=LIMIT) for _ in range(8)]
    stack.callback(lambda: [call.cancel() for call in calls])
    return calls


def private_bytes(process: psutil.Process) -> int:
    """Return a process's resident memory without that of mapped files."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def test_a_flooded_server_stays_small_and_answers(huge_rows: Path, start: Any) -> None:
    words = ["--memory-in-flight", "64M", "--ids-per-request", "65536", "--threads", "64"]
    server = start(huge_rows, 0, *words, "--send-timeout", "2", "--metrics", "127.0.0.1:0")
    process = psutil.Process(server.process.pid)
    before, most = private_bytes(process), 0
    with ExitStack() as stack, FeatureClient([server.address], deadline=LIMIT) as client:
        calls = flood(stack, server.address)
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            most = max(most, private_bytes(process))
            time.sleep(0.02)
        out = np.zeros((2, DIM), np.float32)
        client.fetch_rows("features", "paper", {0: np.array([3, 50])}, out, {0: slice(None)})
        assert out.mean(1).tolist() == [3, 50]
        most = max(most, private_bytes(process))
        samples = scrape(server.metrics)
        refused = [
            call for call in calls if call.done() and call.code().name == "RESOURCE_EXHAUSTED"
        ]
        assert any("bytes of this server's memory" in call.details() for call in refused)
        assert all(read_hint(call) > 0 for call in refused)
    assert most - before < BOUND + SLACK
    labels = (("method", "FetchRows"), ("status", "RESOURCE_EXHAUSTED"))
    assert samples["hopper_server_requests_total", labels] >= len(refused) > 0
    assert samples["hopper_server_memory_in_flight_limit_bytes", ()] == BOUND


class _Refusal(grpc.RpcError):
    def __init__(self, value: object) -> None:
        self._value = value

    def trailing_metadata(self) -> Any:
        return (("other", "x"), (RETRY_AFTER, self._value))


def test_a_hint_is_read_with_care() -> None:
    assert read_hint(_Refusal("120")) == 0.12
    assert read_hint(_Refusal("999999")) == 2.0
    for wrong in ("", "-5", "1e9", "9" * 400, "x", b"5"):
        assert read_hint(_Refusal(wrong)) == 0.0
    assert read_hint(grpc.RpcError()) == 0.0
    assert retry_hint(0) == ((RETRY_AFTER, "50"),)
    assert retry_hint(10**6) == ((RETRY_AFTER, "2000"),)


def test_one_address_or_connection_cannot_take_all_memory() -> None:
    memory = MemoryInFlight(100)
    memory.change(("a:1", "a"), 0, 25)
    with pytest.raises(NoRoom, match="replies to a:1 may hold 25 bytes"):
        memory.change(("a:1", "a"), 0, 1)
    for port in (2, 3):
        memory.change((f"a:{port}", "a"), 0, 25)
    with pytest.raises(NoRoom, match="replies to a may hold 75 bytes"):
        memory.change(("a:4", "a"), 0, 1)
    memory.change(("b:1", "b"), 0, 25)
    with pytest.raises(NoRoom, match="replies to all"):
        memory.change(("c:1", "c"), 0, 1)
    with pytest.raises(NoRoom, match="replies to all"):
        memory.check_waiting()
    for names in (("a:1", "a"), ("a:2", "a"), ("a:3", "a"), ("b:1", "b")):
        memory.change(names, 25, 0)
    assert memory.nbytes == 0
    # One alone may be larger than the bound.
    memory.change(("a:1", "a"), 0, 1000)
    with pytest.raises(NoRoom):
        memory.change(("b:1", "b"), 0, 1)
