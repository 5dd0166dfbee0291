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
from cache_server.client.retry import read_hint
from cache_server.service.flow import FlowControl, NoRoom, Reply
from cache_server.wire import FETCH_ROWS, RETRY_AFTER
from tests.cache_server.conftest import write_shard
from tests.cache_server.test_abuse import request_for
from tests.cache_server.test_metrics import scrape

LIMIT = 60.0
BOUND = 64 << 20
SLACK = 64 << 20
"""what glibc and gRPC keep beside it"""
ROWS, DIM = 64, 1 << 19


@pytest.fixture(scope="module")
def huge_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with rows of 2 MiB. A server keeps 6 MiB for each reply that nobody reads."""
    rows = np.broadcast_to(np.arange(ROWS, dtype=np.float32)[:, None], (ROWS, DIM))
    return write_shard(tmp_path_factory.mktemp("huge"), "paper", rows)


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
    flow = FlowControl(4, 1.0, 1, 0)
    assert flow.retry_hint() == ((RETRY_AFTER, "50"),)
    flow.pool.waiting = 10**6
    assert flow.retry_hint() == ((RETRY_AFTER, "2000"),)


def reply_to(peer: str) -> Reply:
    return Reply(peer, lambda: None)


def test_one_address_or_connection_cannot_take_all_memory() -> None:
    flow = FlowControl(16, 1.0, 100, 0)
    replies = {name: reply_to(name) for name in ("a:1", "a:2", "a:3", "b:1")}
    flow.hold(replies["a:1"], 25)
    with pytest.raises(NoRoom, match="replies to a:1 may hold 25 bytes"):
        flow.hold(reply_to("a:1"), 1)
    flow.hold(replies["a:2"], 25)
    flow.hold(replies["a:3"], 25)
    with pytest.raises(NoRoom, match="replies to a may hold 75 bytes"):
        flow.hold(reply_to("a:4"), 1)
    flow.hold(replies["b:1"], 25)
    with pytest.raises(NoRoom, match="replies to all"):
        flow.hold(reply_to("c:1"), 1)
    for reply in replies.values():
        flow.hold(reply, 0)
    assert flow.nbytes == 0
    # One alone may be larger than the bound.
    flow.hold(replies["a:1"], 1000)
    with pytest.raises(NoRoom):
        flow.hold(replies["b:1"], 1)


@pytest.mark.parametrize(("threads", "a_connection", "an_address"), [(16, 4, 12), (4, 2, 3)])
def test_one_address_or_connection_cannot_take_all_threads(
    threads: int, a_connection: int, an_address: int
) -> None:
    """A connection may have two replies at least: a rank samples and fetches at once."""
    flow = FlowControl(threads, 1.0, 1 << 20, 0)
    with ExitStack() as stack:
        for port in range(an_address):
            stack.enter_context(flow.admit(reply_to(f"a:{port // a_connection}")))
            if port == a_connection - 1:
                with pytest.raises(NoRoom, match="replies to a:0 are under way"):
                    stack.enter_context(flow.admit(reply_to("a:0")))
        with pytest.raises(NoRoom, match="replies to a are under way"):
            stack.enter_context(flow.admit(reply_to("a:99")))
        stack.enter_context(flow.admit(reply_to("b:1")))
        assert flow.running == an_address + 1
    assert (flow.running, flow.nbytes) == (0, 0)
