"""A server stays small and answers others whatever anybody sends to its port."""

import os
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import grpc
import numpy as np
import psutil
import pytest

from cache_server.client import FeatureClient
from cache_server.errors import BadReply, DeadlineExceeded, InvalidRequest
from cache_server.generated import features_pb2
from cache_server.wire import CHECK, DESCRIBE, FETCH_ROWS
from tests.cache_server.conftest import Servers, write_shard
from tests.tcp_proxy import TcpProxy

ALL = slice(None)
LIMIT = 30.0


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A server's folder with rows of 64 KiB each, a few of which fill every buffer on the way."""
    rows = np.arange(256, dtype=np.float32)[:, None].repeat(16384, axis=1)
    return write_shard(tmp_path_factory.mktemp("wide"), "paper", rows)


@pytest.fixture(scope="module")
def wide_server(wide, tmp_path_factory):
    servers = Servers(tmp_path_factory.mktemp("ports"))
    yield servers.start(wide, 0)
    servers.stop()


def request_for(ids, **changes):
    fields = {"kind": "features", "type": "paper", "dtype": "float32", "dim": 16384} | changes
    ids = np.asarray(ids, "<i8").tobytes()
    return features_pb2.FetchRowsRequest(ids=ids, **fields).SerializeToString()


def fetch(client, ids):
    out = np.zeros((len(ids), 16384), np.float32)
    client.fetch_rows("features", "paper", {0: np.array(ids)}, out, {0: ALL})
    # All elements of a row are the same number.
    assert (out == out[:, :1]).all()
    return out[:, 0]


@pytest.mark.parametrize("method", [FETCH_ROWS, DESCRIBE, CHECK])
def test_undecodable_requests_are_refused_and_leave_no_memory_behind(running, method):
    server = running[0]
    process = psutil.Process(server.process.pid)
    with grpc.insecure_channel(server.address) as channel:
        make = channel.unary_stream if method == FETCH_ROWS else channel.unary_unary
        call = make(method)
        sizes = []
        for count in (300, 1000):
            for number in range(count):
                # A length that reaches beyond the end, and a tag that no message has.
                request = b"\x0a\x7f" if number % 2 else b"\x0f" + os.urandom(40)
                with pytest.raises(grpc.RpcError) as caught:
                    list(call(request, timeout=LIMIT))
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            sizes.append(process.memory_info().rss)
    # 19 kB each made 19 MB of it.
    assert sizes[1] - sizes[0] < 8 << 20


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"kind": "k" * 20_000}, "kind: expected at most 256 bytes, found 20000"),
        ({"type": "t" * 500_000}, "type: expected at most 256 bytes, found 500000"),
        ({"dtype": "d" * 300}, "dtype: expected at most 256 bytes, found 300"),
        ({"dim": 2**63}, "dim: rows of"),
        (
            {"type": "author", "dtype": "float16", "dim": 3, "form": "int8"},
            "only float32 is rounded, to int8 as to any form",
        ),
    ],
)
def test_absurd_fields_are_refused_with_a_short_text(addresses, changes, text):
    with grpc.insecure_channel(addresses[0]) as channel:
        call = channel.unary_stream(FETCH_ROWS)
        with pytest.raises(grpc.RpcError) as caught:
            list(call(request_for([1], **{"dim": 5} | changes), timeout=LIMIT))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert text in caught.value.details()
    assert len(caught.value.details()) < 1100


def test_a_request_above_the_limit_of_bytes_is_not_tried_again(partitioned, start):
    """The client does not know the server's limit, since it did not call ``wait_until_serving``."""
    server = start(partitioned.path, 0, "--ids-per-request", "1")
    with FeatureClient([server.address], deadline=LIMIT) as client:
        out = np.zeros((200_000, 5), np.float32)
        with pytest.raises(InvalidRequest, match="larger than max"):
            client.fetch_rows("features", "paper", {0: np.zeros(200_000, np.int64)}, out, {0: ALL})


@contextmanager
def unread_streams(address, connections, streams):
    """Ask for replies of 16 MiB each and read none of them."""
    channels = [
        grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        for _ in range(connections)
    ]
    request = request_for(list(range(256)))
    calls = [
        channel.unary_stream(FETCH_ROWS)(request) for channel in channels for _ in range(streams)
    ]
    try:
        time.sleep(1.0)
        yield calls
    finally:
        for call in calls:
            call.cancel()
        for channel in channels:
            channel.close()


def test_a_reply_that_nobody_reads_is_given_up(wide, start):
    """More connections ask than one address may have threads."""
    server = start(wide, 0, "--send-timeout", "2")
    with (
        unread_streams(server.address, connections=20, streams=4),
        FeatureClient([server.address], deadline=LIMIT) as client,
    ):
        client.wait_until_serving(LIMIT)
        assert fetch(client, [7]).tolist() == [7]


def read_slowly(calls, ended):
    """Read a chunk of 1 MiB of every reply a second."""
    while not ended.wait(1.0):
        for call in calls:
            with suppress(grpc.RpcError, StopIteration):
                next(call)


@pytest.mark.parametrize("kind", ["slow readers", "silent calls"])
def test_calls_that_let_the_server_wait_make_room_for_others(wide, start, kind):
    """They come from the same address as a good client, and none reaches ``--send-timeout``."""
    server, ended = start(wide, 0), threading.Event()
    with ExitStack() as stack, FeatureClient([server.address], deadline=20.0) as client:
        calls = []
        stack.callback(lambda: [call.cancel() for call in calls])
        for _ in range(20):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = stack.enter_context(grpc.insecure_channel(server.address, options))
            if kind == "slow readers":
                calls.append(channel.unary_stream(FETCH_ROWS)(request_for(list(range(256)) * 40)))
            else:
                silence = [iter(partial(ended.wait, 60.0), True) for _ in range(8)]
                calls += [channel.stream_stream(FETCH_ROWS)(requests) for requests in silence]
        if kind == "slow readers":
            reader = threading.Thread(target=read_slowly, args=(calls, ended))
            reader.start()
            stack.callback(reader.join)
        stack.callback(ended.set)
        time.sleep(1.0)
        assert fetch(client, [3, 200]).tolist() == [3, 200]


def test_health_is_answered_while_all_threads_are_busy(wide, start):
    server = start(wide, 0, "--threads", "1", "--send-timeout", "60")
    with (
        unread_streams(server.address, connections=1, streams=8),
        grpc.insecure_channel(server.address) as channel,
    ):
        assert channel.unary_unary(CHECK)(b"", timeout=LIMIT) == b"\x08\x01"


def test_garbage_instead_of_http_ends_no_server(running):
    server = running[0]
    host, _, port = server.address.rpartition(":")
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    generator = np.random.default_rng(5)
    for number in range(200):
        with socket.create_connection((host, int(port)), timeout=LIMIT) as raw:
            noise = generator.bytes(int(generator.integers(1, 4000)))
            raw.sendall(preface + noise if number % 2 else noise)
    with FeatureClient([server.address], deadline=LIMIT) as client:
        assert client.describe(0).servers == 3
    assert server.process.poll() is None


class FlipOnce:
    """Flips one bit at a place of the stream, the first ``times`` times that the place passes."""

    def __init__(self, place, times):
        self.place, self.left = place, times

    def __call__(self, data, place):
        if self.left and place <= self.place < place + len(data):
            self.left -= 1
            changed = bytearray(data)
            changed[self.place - place] ^= 0x10
            return bytes(changed)
        return data


def test_a_bit_that_flips_on_the_way_changes_no_row(wide_server):
    server, flip = wide_server, FlipOnce(300_000, 1)
    with TcpProxy(server.address, flip) as proxy, FeatureClient([proxy.address]) as client:
        assert fetch(client, [5, 6, 7, 8, 9, 10, 11, 12]).tolist() == [5, 6, 7, 8, 9, 10, 11, 12]
    assert not flip.left


def test_bits_that_flip_again_and_again_are_told(wide_server):
    def flip_always(data, place):
        # In the middle of what only rows are long enough to be.
        if len(data) < 30_000:
            return data
        return data[:15_000] + bytes([data[15_000] ^ 1]) + data[15_001:]

    with (
        TcpProxy(wide_server.address, flip_always) as proxy,
        FeatureClient([proxy.address], deadline=LIMIT) as client,
        pytest.raises(BadReply, match=r"feature server 0 at .* altered on the way 4 times"),
    ):
        fetch(client, list(range(64)))


def test_rows_that_trickle_in_end_with_the_deadline(wide_server):
    """At 60 kB/s no attempt fails, and no gap between bytes is long."""
    with (
        TcpProxy(wide_server.address, pause=0.1, piece=6000) as proxy,
        FeatureClient([proxy.address], deadline=2.0) as client,
        pytest.raises(DeadlineExceeded, match=r"FetchRows features/paper"),
    ):
        fetch(client, list(range(256)))
