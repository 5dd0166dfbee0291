"""Servers that never start, die, stall or answer nonsense cause a named error, a retry, or a
change to another replica."""

import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import xxhash
from numpy.typing import NDArray

from cache_server import errors
from cache_server.client import FeatureClient
from cache_server.generated import features_pb2
from cache_server.store.manifest import TableSpec, set_division
from cache_server.store.shard import GraphFiles, Shard
from cache_server.store.table import Table
from cache_server.wire import DESCRIBE, FETCH_ROWS, decode_ids
from hopper.config import make_config
from tests.cache_server.conftest import ScriptedServer, fetch
from tests.conftest import free_ports
from tests.tcp_proxy import TcpProxy

PAPERS = ("features", "paper")


def test_a_server_that_never_started_is_named_until_the_client_is_closed():
    address = f"127.0.0.1:{free_ports()}"
    with FeatureClient([address], deadline=0.6) as client, ThreadPoolExecutor(1) as pool:
        for call in (lambda: fetch(client, [1]), lambda: client.describe(0)):
            with pytest.raises(errors.ServerUnavailable) as caught:
                call()
            for text in (f"feature server 0 at {address}", "(limit 0.6 s)", "UNAVAILABLE"):
                assert text in str(caught.value)
        with pytest.raises(
            errors.ServerUnavailable, match=r"wait until serving: .*\(limit 0.3 s\)"
        ):
            client.wait_until_serving(0.3)
        client.deadline = 30
        waiting = pool.submit(fetch, client, [1])
        time.sleep(0.3)
        assert not waiting.done()
        client.close()
        with pytest.raises((errors.ServerFault, errors.BadRequest), match=r"[Cc]losed"):
            waiting.result(5)


def test_a_slow_connection_is_no_failure(partitioned, addresses):
    def wait_first(data: bytes, offset: int) -> bytes:
        if offset == 0:
            time.sleep(0.5)
        return data

    transfers: list[Any] = []
    with (
        TcpProxy(addresses[0], wait_first) as proxy,
        FeatureClient([proxy.address], on_transfer=lambda *sent: transfers.append(sent)) as client,
    ):
        assert np.array_equal(fetch(client, [3]), partitioned.rows[PAPERS][[3]])
    # A request that is sent again counts again.
    assert len(transfers) == 1


def test_a_server_that_stalls_dies_and_comes_back(partitioned, start):
    server = start(partitioned.path, 0)
    with FeatureClient([server.address], deadline=1.0) as client, ThreadPoolExecutor(1) as pool:
        before = fetch(client, [5, 6])
        server.process.send_signal(signal.SIGSTOP)
        stopped = psutil.Process(server.process.pid)
        while stopped.status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        with pytest.raises(errors.DeadlineExceeded) as caught:
            fetch(client, [1])
        named = f"feature server 0 at {server.address}: FetchRows features/paper: "
        assert str(caught.value) == f"{named}not finished within the limit (limit 1 s)"
        killer = threading.Timer(0.3, server.process.kill)
        killer.start()
        with pytest.raises(errors.ServerUnavailable, match=r"unavailable in \d+ attempts"):
            fetch(client, [1])
        killer.join()
        assert server.process.wait(5) == -signal.SIGKILL
        client.deadline = 20.0
        answer = pool.submit(fetch, client, [5, 6])
        time.sleep(0.3)
        assert not answer.done()
        again = start(partitioned.path, 0, listen=server.address)
        assert again.address == server.address
        np.testing.assert_array_equal(answer.result(20), before)


Rows = Callable[[NDArray[np.int64], grpc.ServicerContext], Iterator[bytes]]


class RowServer(ScriptedServer):
    """A server that answers each FetchRows in turn, and describes itself, as a test tells it."""

    def __init__(self, *answers: Rows, **described: Any) -> None:
        self.requests: list[list[int]] = []
        self._rows = list(answers)
        description = features_pb2.ServerDescription(server=0, servers=1, **described)
        described_bytes = description.SerializeToString()
        super().__init__({FETCH_ROWS: self._answer, DESCRIBE: lambda *_: iter([described_bytes])})

    def _answer(self, raw: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        ids = decode_ids(features_pb2.FetchRowsRequest.FromString(raw).ids, 1000)
        self.requests.append(ids.tolist())
        answer = self._rows.pop(0) if len(self._rows) > 1 else self._rows[0]
        for number, rows in enumerate(answer(ids, context)):
            # The checksum as docs/inside/feature-service.md has it.
            seed = (xxhash.xxh3_64_intdigest(raw) + number) % 2**64
            checksum = xxhash.xxh3_64_intdigest(rows, seed)
            yield features_pb2.RowChunk(data=rows, checksum=checksum).SerializeToString()


def rows_of(ids: Any) -> bytes:
    return np.repeat(np.asarray(ids, np.float32), 5).tobytes()


def answer(ids: NDArray[np.int64], _context: grpc.ServicerContext) -> Iterator[bytes]:
    yield rows_of(ids)


def breaking_after(count: int, code: grpc.StatusCode) -> Rows:
    def answer(ids: NDArray[np.int64], context: grpc.ServicerContext) -> Iterator[bytes]:
        yield rows_of(ids[:count])
        context.abort(code, "lost on purpose")

    return answer


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"])
def test_a_retry_asks_only_for_what_is_missing(code):
    counted: list[Any] = []
    status = grpc.StatusCode[code]
    with (
        RowServer(breaking_after(2, status), breaking_after(1, status), answer) as server,
        FeatureClient([server.address], on_transfer=lambda *a: counted.append(a)) as client,
    ):
        out = fetch(client, [7, 8, 9, 10, 11])
    np.testing.assert_array_equal(out[:, 0], [7, 8, 9, 10, 11])
    assert server.requests == [[7, 8, 9, 10, 11], [9, 10, 11], [10, 11]]
    assert len(counted) == 3
    assert all(server == 0 and sent > 24 for server, sent, _ in counted)


def test_a_slow_source_is_no_slow_reader_and_a_rank_may_ask_twice_at_once(serve):
    """It takes longer than clients may leave a reply unread."""
    facts: Any = {"kind": "features", "type": "paper", "dtype": "float32"}
    spec = TableSpec(first_id=0, count=9, dim=5, **facts)

    def gather(rows: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        time.sleep(1.0)
        out.view(np.float32)[:] = rows[:, None]

    shard = Shard(0, 1, {PAPERS: Table(spec, 0, gather)}, GraphFiles(Path(), 0))
    server = serve(shard, threads=4, send_seconds=0.2)
    with FeatureClient([server.address], deadline=20) as client, ThreadPoolExecutor(2) as pool:
        for call in [pool.submit(fetch, client, [3, 4]) for _ in range(2)]:
            assert call.result()[:, 0].tolist() == [3, 4]
    assert server.stop(5)
    read = server._servicer.metrics.registry.get_sample_value
    assert read("hopper_server_slow_readers_total") == 0
    for status, count in {"OK": 2, "RESOURCE_EXHAUSTED": None}.items():
        labels = {"method": "FetchRows", "status": status}
        assert read("hopper_server_requests_total", labels) == count


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        ([rows_of([1])], "1 of 2 rows came"),
        ([rows_of([1, 2, 3])], "a chunk of 60 bytes where at most 2 rows of 20 bytes"),
        ([b"123"], "a chunk of 3 bytes where"),
        ([], "0 of 2 rows came"),
        (breaking_after(1, grpc.StatusCode.INTERNAL), "INTERNAL: lost on purpose"),
    ],
)
def test_a_failure_and_a_reply_that_does_not_fit_are_not_retried(reply, text):
    with (
        RowServer(reply if callable(reply) else lambda *_: iter(reply)) as server,
        FeatureClient([server.address]) as client,
        pytest.raises(errors.ServerFault if callable(reply) else errors.BadReply, match=text),
    ):
        fetch(client, [1, 2])
    assert len(server.requests) == 1


def test_the_first_failure_cancels_the_other_servers():
    """A refusal ends the fetch at once, though another server would keep it waiting."""
    entered, released = threading.Event(), threading.Event()

    def hold(ids: NDArray[np.int64], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.add_callback(released.set)
        entered.set()
        yield rows_of(ids[:1])
        released.wait(10)

    def refuse(ids: NDArray[np.int64], context: grpc.ServicerContext) -> Iterator[bytes]:
        entered.wait(10)
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not these")
        yield b""

    ids, places = {0: np.array([1, 2]), 1: np.array([1])}, {0: slice(0, 2), 1: slice(2, 3)}
    with (
        RowServer(hold) as slow,
        RowServer(refuse) as refusing,
        FeatureClient([slow.address, refusing.address], deadline=30) as client,
    ):
        with pytest.raises(errors.InvalidRequest, match=r"feature server 1 .*not these"):
            client.fetch_rows(*PAPERS, ids, np.zeros((3, 5), np.float32), places)
        assert released.wait(5)


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
        RowServer(**described) as server,
        FeatureClient([server.address], division="beef") as client,
        pytest.raises(errors.BadReply, match=text),
    ):
        client.wait_until_serving(20)


def test_calls_leave_a_replica_that_hangs_or_is_gone(partitioned, start):
    """Two calls that fail on the same replica must not turn back to it."""
    servers, rows = [start(partitioned.path, 0) for _ in range(2)], partitioned.rows[PAPERS][:40]
    addresses = ",".join(server.address for server in servers)
    with FeatureClient([addresses], deadline=3.0) as client, ThreadPoolExecutor(2) as pool:
        for stop, go_on in ((signal.SIGSTOP, signal.SIGCONT), (signal.SIGTERM, None)):
            for server in servers:
                np.testing.assert_array_equal(fetch(client, range(40)), rows)
                server.process.send_signal(stop)
                if go_on is None:
                    server.process.wait(15)
                    break
                for call in [pool.submit(fetch, client, range(40)) for _ in range(2)]:
                    np.testing.assert_array_equal(call.result(), rows)
                server.process.send_signal(go_on)
        for _ in range(4):
            np.testing.assert_array_equal(fetch(client, range(40)), rows)
        assert servers[1].stop() == 0
        client.deadline = 0.5
        with pytest.raises(errors.ServerUnavailable, match=r"unavailable in \d+ attempts"):
            fetch(client, [1])


@pytest.mark.parametrize("part", [0, 1])
def test_a_server_that_takes_the_address_of_another_gives_no_rows(
    partitioned, serve, tmp_path, part
):
    """The client has asked the right server before. The new one has another division, or another
    part whose rows have the same ids."""
    running = []
    for name, server, division in (("right", 0, "abcd"), ("wrong", part, "abcd" if part else "ef")):
        folder = Path(shutil.copytree(partitioned.path / "server-0", tmp_path / name))
        set_division(folder, division)
        manifest = json.loads((folder / "shard.json").read_text())
        (folder / "shard.json").write_text(json.dumps(manifest | {"server": server}))
        running.append(serve(folder))
    right, wrong = running
    with (
        TcpProxy(right.address) as proxy,
        FeatureClient([proxy.address], division="abcd") as client,
    ):
        fetch(client, [1])
        proxy.lead_to(wrong.address)
        with pytest.raises(errors.InvalidRequest, match=r"expected server 0 of the division abcd"):
            fetch(client, [1])


def test_replicas_are_written_as_lists_or_texts():
    for servers in ([["a:1", "b:1"], "c:1"], ["a:1,b:1", ["c:1"]]):
        values = {"data": {"partitioned": "parts"}, "cluster": {"servers": servers}}
        assert make_config(values).cluster.servers == ["a:1,b:1", "c:1"]
