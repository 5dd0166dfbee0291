"""Servers that never start, die, stall or answer nonsense cause a named error or a retry."""

import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import psutil
import pytest
import xxhash

from cache_server.client import FeatureClient
from cache_server.errors import (
    BadReply,
    BadRequest,
    DeadlineExceeded,
    InvalidRequest,
    ServerFault,
    ServerUnavailable,
)
from cache_server.generated import features_pb2
from cache_server.service.server import FeatureServer
from cache_server.store.row_source import CheckedSource
from cache_server.store.shard import Shard
from cache_server.store.table import SourceTable, TableDescription
from cache_server.wire import SERVICE, decode_ids
from tests.tcp_proxy import TcpProxy

ALL = slice(None)


def fetch(client, ids, server=0):
    """Fetch rows of papers (5 float32 wide) from one server."""
    out = np.zeros((len(ids), 5), np.float32)
    client.fetch_rows("features", "paper", {server: np.array(ids)}, out, {server: ALL})
    return out


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_server_that_never_started_is_named():
    address = f"127.0.0.1:{unused_port()}"
    with FeatureClient([address], deadline=0.6) as client:
        for call in (lambda: fetch(client, [1]), lambda: client.describe(0)):
            with pytest.raises(ServerUnavailable) as caught:
                call()
            assert f"feature server 0 at {address}" in str(caught.value)
            assert "(limit 0.6 s)" in str(caught.value)
            assert "UNAVAILABLE" in str(caught.value)
        with pytest.raises(ServerUnavailable, match=r"wait until serving: .*\(limit 0.3 s\)"):
            client.wait_until_serving(0.3)


def test_a_slow_connection_is_no_failure(partitioned, addresses):
    def wait_first(data, offset):
        if offset == 0:
            time.sleep(0.5)
        return data

    transfers = []
    with (
        TcpProxy(addresses[0], wait_first) as proxy,
        FeatureClient([proxy.address], on_transfer=lambda *sent: transfers.append(sent)) as client,
    ):
        assert np.array_equal(fetch(client, [3]), partitioned.rows["features", "paper"][[3]])
    # A request that is sent again counts again.
    assert len(transfers) == 1


def test_a_server_that_stalls_and_is_then_killed_is_named_both_times(partitioned, start):
    server = start(partitioned.path, 0)
    with FeatureClient([server.address], deadline=1.0) as client:
        client.describe(0)
        server.process.send_signal(signal.SIGSTOP)
        stopped = psutil.Process(server.process.pid)
        while stopped.status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        with pytest.raises(DeadlineExceeded) as caught:
            fetch(client, [1])
        assert f"feature server 0 at {server.address}: FetchRows features/paper" in str(
            caught.value
        )
        assert "not finished within the limit (limit 1 s)" in str(caught.value)
        killer = threading.Timer(0.3, server.process.kill)
        killer.start()
        with pytest.raises(ServerUnavailable, match=r"unavailable in \d+ attempts"):
            fetch(client, [1])
        killer.join()
    assert server.process.wait(5) == -signal.SIGKILL


def test_a_retry_finds_the_server_that_came_back(partitioned, start):
    server = start(partitioned.path, 0)
    with FeatureClient([server.address], deadline=20.0) as client:
        before = fetch(client, [5, 6])
        server.process.kill()
        server.process.wait(5)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(fetch, client, [5, 6])
            time.sleep(0.3)
            assert not answer.done()
            again = start(partitioned.path, 0, listen=server.address)
            assert again.address == server.address
            np.testing.assert_array_equal(answer.result(20), before)


class ScriptedServer:
    """A server in this process that answers FetchRows, and describes itself, as a test tells it."""

    def __init__(self, *answers, **described):
        self.requests = []
        self._answers = list(answers)
        self._server = grpc.server(ThreadPoolExecutor(2))
        description = features_pb2.ServerDescription(server=0, servers=1, **described)
        serving = features_pb2.HealthCheckResponse(status=features_pb2.HealthCheckResponse.SERVING)
        rows = {"FetchRows": grpc.unary_stream_rpc_method_handler(self._answer)}
        for service, handlers, name, reply in (
            (SERVICE, rows, "Describe", description),
            ("grpc.health.v1.Health", {}, "Check", serving),
        ):
            raw = reply.SerializeToString()
            handlers[name] = grpc.unary_unary_rpc_method_handler(lambda *_, raw=raw: raw)
            generic = grpc.method_handlers_generic_handler(service, handlers)
            self._server.add_generic_rpc_handlers((generic,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def _answer(self, raw, context):
        ids = decode_ids(features_pb2.FetchRowsRequest.FromString(raw).ids, 1000)
        self.requests.append(ids.tolist())
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        for number, rows in enumerate(answer(ids, context)):
            # The checksum as docs/inside/feature-service.md has it.
            seed = (xxhash.xxh3_64_intdigest(raw) + number) % 2**64
            checksum = xxhash.xxh3_64_intdigest(rows, seed)
            yield features_pb2.RowChunk(data=rows, checksum=checksum).SerializeToString()

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *exception):
        self._server.stop(0).wait(5)


def rows_of(ids):
    return np.repeat(np.asarray(ids, np.float32), 5).tobytes()


def answer(ids, context):
    yield rows_of(ids)


def breaking_after(count, code):
    def answer(ids, context):
        yield rows_of(ids[:count])
        context.abort(code, "lost on purpose")

    return answer


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"])
def test_a_retry_asks_only_for_what_is_missing(code):
    counted = []
    code = grpc.StatusCode[code]
    with (
        ScriptedServer(breaking_after(2, code), breaking_after(0, code), answer) as server,
        FeatureClient([server.address], on_transfer=lambda *a: counted.append(a)) as client,
    ):
        out = fetch(client, [7, 8, 9, 10, 11])
    np.testing.assert_array_equal(out[:, 0], [7, 8, 9, 10, 11])
    assert server.requests == [[7, 8, 9, 10, 11], [9, 10, 11], [9, 10, 11]]
    assert len(counted) == 3
    assert all(server == 0 and sent > 24 for server, sent, _ in counted)


class SlowSource:
    """A source of rows that takes longer than clients may leave a reply unread."""

    dim, dtype = 5, "float32"

    def read(self, ids):
        time.sleep(1.0)
        return np.repeat(ids.astype(np.float32)[:, None], 5, axis=1)


def test_a_slow_source_is_no_slow_reader_and_a_rank_may_ask_twice_at_once():
    spec = TableDescription(
        kind="features", type="paper", first_id=0, count=9, dim=5, dtype="float32"
    )
    source = CheckedSource("SlowSource", "paper", SlowSource())
    tables = {("features", "paper"): SourceTable(spec, source, np.arange(9), 0)}
    server = FeatureServer(Shard(0, 1, tables), "127.0.0.1:0", threads=4, send_seconds=0.2)
    server.start()
    with FeatureClient([server.address], deadline=20) as client, ThreadPoolExecutor(2) as pool:
        for call in [pool.submit(fetch, client, [3, 4]) for _ in range(2)]:
            assert call.result()[:, 0].tolist() == [3, 4]
    assert server.stop(5)
    read = server._servicer.metrics.registry.get_sample_value
    assert read("hopper_server_slow_readers_total") == 0
    for status, count in {"OK": 2, "RESOURCE_EXHAUSTED": None}.items():
        labels = {"method": "FetchRows", "status": status}
        assert read("hopper_server_requests_total", labels) == count


def test_a_failure_of_the_server_is_not_retried():
    with (
        ScriptedServer(breaking_after(1, grpc.StatusCode.INTERNAL)) as server,
        FeatureClient([server.address]) as client,
        pytest.raises(ServerFault, match="INTERNAL: lost on purpose"),
    ):
        fetch(client, [7, 8])
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ([rows_of([1])], "1 of 2 rows came"),
        ([rows_of([1, 2, 3])], "a chunk of 60 bytes where at most 2 rows of 20 bytes"),
        ([b"123"], "a chunk of 3 bytes where"),
        ([], "0 of 2 rows came"),
    ],
)
def test_a_reply_that_does_not_fit_is_refused(reply, text):
    with (
        ScriptedServer(lambda ids, context: iter(reply)) as server,
        FeatureClient([server.address]) as client,
        pytest.raises(BadReply) as caught,
    ):
        fetch(client, [1, 2])
    assert text in str(caught.value)


def test_the_first_failure_cancels_the_other_servers():
    """A refusal ends the fetch at once, though another server would keep it waiting."""
    entered, released = threading.Event(), threading.Event()

    def hold(ids, context):
        context.add_callback(released.set)
        entered.set()
        yield rows_of(ids[:1])
        released.wait(10)

    def refuse(ids, context):
        entered.wait(10)
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not these")
        yield b""

    with (
        ScriptedServer(hold) as slow,
        ScriptedServer(refuse) as refusing,
        FeatureClient([slow.address, refusing.address], deadline=30) as client,
    ):
        out = np.zeros((3, 5), np.float32)
        with pytest.raises(InvalidRequest, match=r"feature server 1 .*not these"):
            client.fetch_rows(
                "features",
                "paper",
                {0: np.array([1, 2]), 1: np.array([1])},
                out,
                {0: slice(0, 2), 1: slice(2, 3)},
            )
        assert released.wait(5)


def test_closing_ends_a_fetch_between_attempts():
    client = FeatureClient([f"127.0.0.1:{unused_port()}"], deadline=30)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fetch, client, [1])
        time.sleep(0.3)
        assert not waiting.done()
        client.close()
        with pytest.raises((ServerFault, BadRequest), match=r"[Cc]losed"):
            waiting.result(5)


@pytest.mark.parametrize(
    ("described", "text"),
    [
        ({"ids_per_request": 0}, "ids_per_request: expected at least 1, found 0"),
        ({"ids_per_request": 9, "division": "0af1"}, "serves the division 0af1, expected beef"),
        ({"ids_per_request": 9}, "serves the division without a fingerprint, expected beef"),
    ],
)
def test_an_unusable_server_is_refused_before_any_request(described, text):
    with (
        ScriptedServer(**described) as server,
        FeatureClient([server.address], division="beef") as client,
        pytest.raises(BadReply, match=text),
    ):
        client.wait_until_serving(20)
