"""A server stays small and answers others whatever anybody sends to its port."""

import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest

from cache_server.client import FeatureClient
from cache_server.client.in_process import open_servicers
from cache_server.errors import BadReply, DeadlineExceeded
from cache_server.generated import features_pb2
from cache_server.service.flow import FlowControl, NoRoom, Reply
from cache_server.wire import (
    CHECK,
    DESCRIBE,
    DESCRIBE_GRAPH,
    FETCH_ROWS,
    READ_IDS,
    SAMPLE_NEIGHBORS,
    chunk_seeds,
    read_chunk,
    write_chunk,
)
from tests.cache_server.conftest import ScriptedServer, fetch, write_shard
from tests.cache_server.test_metrics import scrape
from tests.tcp_proxy import TcpProxy

LIMIT = 30.0
WIDE = 16_384
HUGE = 1 << 19
BOUND = SLACK = 64 << 20
"""of memory in flight, and what glibc and gRPC keep beside it"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Path:
    """A server's folder with rows of 64 KiB, a few of which fill every buffer on the way."""
    rows = np.arange(256, dtype=np.float32)[:, None].repeat(WIDE, axis=1)
    return write_shard(tmp_path_factory.mktemp("wide"), "paper", rows) / "server-0"


def request_for(rows: Sequence[int], dim: int = WIDE, **changes: Any) -> bytes:
    fields = {"kind": "features", "type": "paper", "dtype": "float32", "dim": dim}
    fields |= {"ids": np.asarray(rows, "<i8").tobytes()} | changes
    return features_pb2.FetchRowsRequest(**fields).SerializeToString()


def train_ids(first: int, count: int) -> bytes:
    request = features_pb2.ReadIdsRequest(kind="splits", type="train", first=first, count=count)
    return request.SerializeToString()


def fetch_first(client: FeatureClient, ids: Sequence[int]) -> list[float]:
    """Fetch wide rows, in which all elements are the same number."""
    out = fetch(client, ids, WIDE)
    assert (out == out[:, :1]).all()
    return out[:, 0].tolist()


def refusal(call: Callable[[], Any]) -> str:
    """Return the text with which a server refuses a call as invalid."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert len(caught.value.details()) < 1100
    return caught.value.details()


@pytest.mark.parametrize("method", [FETCH_ROWS, READ_IDS, DESCRIBE_GRAPH, DESCRIBE, CHECK])
def test_undecodable_requests_are_refused_and_leave_no_memory_behind(running, method):
    process = psutil.Process(running[0].process.pid)
    with grpc.insecure_channel(running[0].address) as channel:
        is_stream = method in (FETCH_ROWS, READ_IDS)
        make = channel.unary_stream if is_stream else channel.unary_unary
        sizes, call = [], make(method)
        for count in (150, 500):
            for number in range(count):
                # A length that reaches beyond the end, and a tag that no message has.
                request = b"\x0a\x7f" if number % 2 else b"\x0f" + os.urandom(40)
                refusal(lambda request=request: list(call(request, timeout=LIMIT)))
            sizes.append(process.memory_info().rss)
    # 19 kB each made 9 MB of it.
    assert sizes[1] - sizes[0] < 4 << 20


NOT_FLOATS = {"type": "author", "dtype": "float16", "form": "int8"}
ABSURD = [
    (FETCH_ROWS, request_for([1], 5, kind="k" * 20_000), "kind: expected at most 256 bytes, found"),
    (FETCH_ROWS, request_for([1], 5, type="t" * 500_000), "type: expected at most 256 bytes"),
    (FETCH_ROWS, request_for([1], 5, dtype="d" * 300), "dtype: expected at most 256 bytes, found"),
    (FETCH_ROWS, request_for([1], 2**63), "dim: rows of"),
    (FETCH_ROWS, request_for([1], 3, **NOT_FLOATS), "only float32 is rounded, to int8 as to any"),
    (FETCH_ROWS, request_for([], 5, ids=bytes(23)), "ids: 23 bytes are not a multiple of 8 (int6"),
    (SAMPLE_NEIGHBORS, b"\x0a\x00" * 5000, "draws: expected at most 4096 in a request, found 5000"),
    (READ_IDS, train_ids(0, 2**62), "expected a range of 300, found 0 and"),
    (READ_IDS, train_ids(2**63 - 1, 2**63 - 1), "expected a range of 300, found 9223372036854775"),
    (READ_IDS, train_ids(5, -1), "expected a range of 300, found 5 and -1"),
]


@pytest.mark.parametrize(("method", "request_bytes", "text"), ABSURD)
def test_absurd_fields_are_refused_with_a_short_text(addresses, method, request_bytes, text):
    with grpc.insecure_channel(addresses[0]) as channel:
        call = channel.unary_stream(method)
        assert text in refusal(lambda: list(call(request_bytes, timeout=LIMIT)))


def spoil(draw: random.Random, message: bytes) -> bytes:
    """Flip a bit of a message or cut it short, and append to some."""
    changed = bytearray(message or b"\0")
    if draw.randrange(2):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    else:
        del changed[draw.randrange(len(changed)) :]
    return bytes(changed) + draw.randbytes(draw.choice((0, 0, draw.randrange(1, 200))))


def test_spoiled_replies_are_answers_or_named_errors(partitioned):
    """Half of the messages are spoiled under right checksums. Within the size that is due, a server
    can say what it wants."""
    draw, outcomes = random.Random(11), Counter[str]()
    servicer = open_servicers([partitioned.path / "server-0"])[0]

    def answer(method: str, raw: bytes, _context: Any) -> Iterator[bytes]:
        for message, seed in zip(
            servicer.answers[method](raw, Reply("here")), chunk_seeds(raw), strict=False
        ):
            data = message if method == DESCRIBE_GRAPH else read_chunk(message, seed).tobytes()
            data = spoil(draw, data) if draw.randrange(2) else data
            if method == DESCRIBE_GRAPH:
                yield data
            else:
                chunk = write_chunk(np.frombuffer(data, np.uint8), seed)
                yield from [chunk] * draw.choice((0, 1, 1, 1, 1, 2))

    answers = {method: partial(answer, method) for method in servicer.answers}
    with (
        ScriptedServer(answers) as server,
        FeatureClient([server.address], deadline=LIMIT) as client,
    ):
        for _ in range(100):
            for ask in (
                lambda: fetch(client, range(30)),
                lambda: client.read_ids("splits", "train", 3, 40),
                client.describe_graph,
            ):
                try:
                    ask()
                except BadReply:
                    outcomes["BadReply"] += 1
                else:
                    outcomes["an answer"] += 1
    assert min(outcomes["BadReply"], outcomes["an answer"]) > 40, outcomes


def open_channel(stack: ExitStack, address: str) -> grpc.Channel:
    """Open a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    return stack.enter_context(grpc.insecure_channel(address, options))


def read_slowly(calls: list[Any], ended: threading.Event) -> None:
    """Read a chunk of 1 MiB of every reply a second."""
    while not ended.wait(1.0):
        for call in calls:
            with suppress(grpc.RpcError, StopIteration):
                next(call)


@pytest.mark.parametrize("kind", ["no readers", "slow readers", "silent calls"])
def test_calls_that_let_the_server_wait_make_room_for_others(wide, serve, kind):
    """They come from the same address as a good client, and only those that nobody reads reach the
    time limit. More connections ask than one address may have threads."""
    options = {"send_seconds": 2.0} if kind == "no readers" else {}
    address, ended = serve(wide, **options).address, threading.Event()
    with ExitStack() as stack, FeatureClient([address], deadline=20.0) as client:
        calls: list[Any] = []
        stack.callback(lambda: [call.cancel() for call in calls])
        for _ in range(20):
            channel = open_channel(stack, address)
            if kind == "no readers":
                call = channel.unary_stream(FETCH_ROWS)
                calls += [call(request_for(range(256))) for _ in range(4)]
            elif kind == "slow readers":
                calls.append(channel.unary_stream(FETCH_ROWS)(request_for([*range(256)] * 40)))
            else:
                silence = [iter(partial(ended.wait, 60.0), True) for _ in range(8)]
                calls += [channel.stream_stream(FETCH_ROWS)(requests) for requests in silence]
        if kind == "slow readers":
            reader = threading.Thread(target=read_slowly, args=(calls, ended))
            reader.start()
            stack.callback(reader.join)
        stack.callback(ended.set)
        time.sleep(1.0)
        client.wait_until_serving(LIMIT)
        assert fetch_first(client, [3, 200]) == [3, 200]


def count_chunks(call: Any) -> int:
    """Return how many chunks come; none if the call is refused."""
    with suppress(grpc.RpcError):
        return len(list(call))
    return 0


@pytest.mark.parametrize(("threads", "admitted"), [(1, 1), (4, 2)])
def test_calls_beyond_those_of_a_connection_are_refused_and_health_is_answered(
    wide, serve, threads, admitted
):
    """With four threads there are two, since a rank samples and fetches at once."""
    server = serve(wide, threads=threads, send_seconds=60.0)
    read = server._servicer.metrics.registry.get_sample_value
    with ExitStack() as stack:
        call = open_channel(stack, server.address).unary_stream(FETCH_ROWS)
        calls = [call(request_for(range(256))) for _ in range(6)]
        time.sleep(0.5)
        assert read("hopper_server_requests_in_flight") == admitted
        check = open_channel(stack, server.address).unary_unary(CHECK)
        assert check(b"", timeout=LIMIT) == b"\x08\x01"
        if threads > 1:
            labels = {"method": "FetchRows", "status": "RESOURCE_EXHAUSTED"}
            assert read("hopper_server_requests_total", labels) == 4
        # They are not admitted in their order, so all are read at once.
        with ThreadPoolExecutor(6) as pool:
            counts = sorted(pool.map(count_chunks, calls))
        assert counts[-admitted:] == [16] * admitted
        assert threads == 1 or counts[:4] == [0] * 4


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
    """Flips one bit at a place of the stream, the first time that the place passes."""

    def __init__(self, place: int) -> None:
        self.place, self.is_due = place, True

    def __call__(self, data: bytes, place: int) -> bytes:
        if self.is_due and place <= self.place < place + len(data):
            self.is_due = False
            changed = bytearray(data)
            changed[self.place - place] ^= 0x10
            return bytes(changed)
        return data


def flip_always(data: bytes, _place: int) -> bytes:
    """Flip a bit in the middle of what only rows are long enough to be."""
    if len(data) < 30_000:
        return data
    return data[:15_000] + bytes([data[15_000] ^ 1]) + data[15_001:]


def test_bits_that_flip_on_the_way_change_no_row(wide, serve):
    address, flip = serve(wide).address, FlipOnce(300_000)
    with TcpProxy(address, flip) as proxy, FeatureClient([proxy.address]) as client:
        assert fetch_first(client, range(5, 13)) == [*range(5, 13)]
    assert not flip.is_due
    with (
        TcpProxy(address, flip_always) as proxy,
        FeatureClient([proxy.address], deadline=LIMIT) as client,
        pytest.raises(BadReply, match=r"feature server 0 at .* altered on the way 4 times"),
    ):
        fetch_first(client, range(64))


def test_rows_that_trickle_in_end_with_the_deadline(wide, serve):
    """At 60 kB/s no attempt fails, and no gap between bytes is long."""
    with (
        TcpProxy(serve(wide).address, pause=0.1, piece=6000) as proxy,
        FeatureClient([proxy.address], deadline=2.0) as client,
        pytest.raises(DeadlineExceeded, match=r"FetchRows features/paper"),
    ):
        fetch_first(client, range(256))


def private_bytes(process: psutil.Process) -> int:
    """Return a process's resident memory without that of mapped files."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def test_a_flooded_server_stays_small_and_answers(tmp_path, start):
    """Rows have 2 MiB, so it keeps 6 MiB for each of 96 replies that nobody reads."""
    rows = np.broadcast_to(np.arange(16, dtype=np.float32)[:, None], (16, HUGE))
    write_shard(tmp_path, "paper", rows)
    words = ["--memory-in-flight", "64M", "--ids-per-request", "65536", "--threads", "64"]
    server = start(tmp_path, 0, *words, "--send-timeout", "2", "--metrics", "127.0.0.1:0")
    process = psutil.Process(server.process.pid)
    before, most, calls = private_bytes(process), 0, list[Any]()
    with ExitStack() as stack, FeatureClient([server.address], deadline=2 * LIMIT) as client:
        for _ in range(12):
            call = open_channel(stack, server.address).unary_stream(FETCH_ROWS)
            calls += [call(request_for([*range(16)] * 400, HUGE), timeout=LIMIT) for _ in range(8)]
        stack.callback(lambda: [call.cancel() for call in calls])
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            most = max(most, private_bytes(process))
            time.sleep(0.02)
        assert fetch(client, [3, 11], HUGE).mean(1).tolist() == [3, 11]
        most = max(most, private_bytes(process))
        samples = scrape(server.metrics)
        ended = [call for call in calls if call.done()]
        refused = [call for call in ended if call.code().name == "RESOURCE_EXHAUSTED"]
        assert any("bytes of this server's memory" in call.details() for call in refused)
    assert most - before < BOUND + SLACK
    labels = (("method", "FetchRows"), ("status", "RESOURCE_EXHAUSTED"))
    assert samples["hopper_server_requests_total", labels] >= len(refused) > 0
    assert samples["hopper_server_memory_in_flight_limit_bytes", ()] == BOUND


def test_one_address_cannot_take_all_memory():
    flow = FlowControl(16, 100, 1.0)
    replies = {name: Reply(name) for name in ("a:1", "a:2", "b:1", "c:1")}
    with ExitStack() as stack:
        for reply in replies.values():
            stack.enter_context(flow.admit(reply))
        flow.hold(replies["a:1"], 50)
        with pytest.raises(NoRoom, match="replies to a may hold 75 bytes"):
            flow.hold(replies["a:2"], 26)
        flow.hold(replies["a:2"], 25)
        flow.hold(replies["b:1"], 25)
        with pytest.raises(NoRoom, match="replies to all may hold 100 bytes"):
            flow.hold(replies["c:1"], 1)
        for reply in replies.values():
            flow.hold(reply, 0)
        # One alone may be larger than the bound.
        flow.hold(replies["a:1"], 1000)
        with pytest.raises(NoRoom):
            flow.hold(replies["b:1"], 1)
        assert flow.nbytes == 1000
    assert (flow.running, flow.nbytes) == (0, 0)


@pytest.mark.parametrize(
    ("threads", "of_a_connection", "of_an_address"), [(1, 1, 1), (4, 2, 3), (16, 4, 12)]
)
def test_one_address_or_connection_cannot_take_all_threads(threads, of_a_connection, of_an_address):
    flow = FlowControl(threads)
    with ExitStack() as stack:
        for number in range(of_an_address):
            reply = Reply(f"a:{number // of_a_connection}")
            stack.enter_context(flow.admit(reply))
            if number + 1 == of_a_connection < of_an_address:
                with pytest.raises(NoRoom, match="replies to a:0 are under way"):
                    stack.enter_context(flow.admit(Reply("a:0")))
        with pytest.raises(NoRoom, match="replies to a are under way"):
            stack.enter_context(flow.admit(Reply("a:99")))
        stack.enter_context(flow.admit(Reply("b:1")))
        assert flow.running == of_an_address + 1
    assert flow.running == 0
