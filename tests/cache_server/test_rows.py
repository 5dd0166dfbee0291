"""Rows and ids arrive as the files hold them, in any thread; what cannot be answered is named."""

import gc
import importlib.util
import json
import re
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from cache_server.client import FeatureClient, feature_client
from cache_server.errors import BadReply, BadRequest, InvalidRequest
from cache_server.generated import features_pb2
from cache_server.store.manifest import write_manifest
from cache_server.wire import CHUNK_BYTES, FETCH_ROWS, encode_ids
from tests.cache_server.conftest import fetch
from tests.server_processes import REPOSITORY

ALL = slice(None)
PAPERS, AUTHORS, LABELS = ("features", "paper"), ("features", "author"), ("labels", "paper")


def test_random_ids_of_several_servers_give_their_rows_in_any_thread(client, partitioned):
    def is_right(case: tuple[int, int, tuple[str, str]]) -> bool:
        seed, count, table = case
        rows = partitioned.rows[table]
        ids = np.random.default_rng(seed).integers(0, len(rows), count)
        out = np.full((len(ids), *rows.shape[1:]), 77, rows.dtype)
        by_server, places = partitioned.split(table[1], ids)
        client.fetch_rows(*table, by_server, out, places)
        return np.array_equal(out, rows[ids])

    tables = (PAPERS, AUTHORS, LABELS)
    for count, table in ((count, table) for count in (0, 1, 17, 2000) for table in tables):
        assert is_right((count, count, table)), (count, table)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, ((seed, 3000, PAPERS) for seed in range(30))))


def test_slices_fill_only_their_rows(client, partitioned):
    out = np.full((10, 5), -1, np.float32)
    ids = {0: np.array([39, 0, 39]), 2: np.array([149, 90])}
    client.fetch_rows(*PAPERS, ids, out, {0: slice(1, 4), 2: slice(9, 5, -2)})
    expected = np.full((10, 5), -1, np.float32)
    expected[1:4] = partitioned.rows[PAPERS][[39, 0, 39]]
    expected[[9, 7]] = partitioned.rows[PAPERS][[149, 90]]
    np.testing.assert_array_equal(out, expected)


def test_rows_that_nobody_holds_are_freed_at_once(client, partitioned):
    """Not only when Python next looks for objects that refer to each other."""
    by_server, places = partitioned.split("paper", np.arange(150))
    out = np.empty((150, 5), np.float32)
    owner = weakref.ref(out)
    gc.disable()
    try:
        client.fetch_rows(*PAPERS, by_server, out, places)
        np.testing.assert_array_equal(out, partitioned.rows[PAPERS][:150])
        del out
        end = time.monotonic() + 60
        while owner() is not None and time.monotonic() < end:
            time.sleep(0.01)  # until the client's threads have let go of it
        assert owner() is None
    finally:
        gc.enable()


def test_many_chunks_and_split_requests_with_bytes_counted(addresses, partitioned):
    """More rows than fit one chunk come in three requests, each counted with its messages."""
    counted: list[tuple[int, ...]] = []
    ids = np.random.default_rng(0).integers(0, 40, 2 * CHUNK_BYTES // 20 + 13)
    out = np.zeros((ids.size, 5), np.float32)
    with FeatureClient(
        addresses,
        on_transfer=lambda *transfer: counted.append(transfer),
        ids_per_request=ids.size // 2 - 1,
    ) as client:
        client.fetch_rows(*PAPERS, {0: ids, 1: ids[:0]}, out, {0: ALL, 1: slice(0)})
    np.testing.assert_array_equal(out, partitioned.rows[PAPERS][ids])
    servers, sent, received = zip(*counted, strict=True)
    assert servers == (0, 0, 0)
    assert 8 * ids.size < sum(sent) < 8 * ids.size + 300
    assert out.nbytes < sum(received) < out.nbytes + 100


def test_messages_are_those_of_the_proto_file(addresses, partitioned, tmp_path):
    """Rows that are written by hand are too, and the committed module is what protoc makes."""
    ids = np.array([140, 91, 140])
    request = features_pb2.FetchRowsRequest(
        kind="features", type="paper", ids=encode_ids(ids), dtype="float32", dim=5
    )
    with grpc.insecure_channel(addresses[2]) as channel:
        messages = list(channel.unary_stream(FETCH_ROWS)(request.SerializeToString(), timeout=10))
    chunks = [features_pb2.RowChunk.FromString(message) for message in messages]
    assert b"".join(chunk.data for chunk in chunks) == partitioned.rows[PAPERS][ids].tobytes()
    assert [chunk.SerializeToString() for chunk in chunks] == messages
    pytest.importorskip("grpc_tools", reason="grpcio-tools (extra dev) is not installed")
    path = REPOSITORY / "scripts" / "generate_stubs.py"
    spec = importlib.util.spec_from_file_location("generate_stubs", path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    [file] = script.generate(tmp_path)
    assert file.read_text() == (REPOSITORY / file.relative_to(tmp_path)).read_text()


def test_servers_describe_themselves_and_are_healthy(client, addresses):
    client.wait_until_serving(10)
    for server in range(3):
        described = client.describe(server)
        assert client.is_serving(server)
        assert (described.server, described.servers) == (server, 3)
        assert {"python", "numpy", "grpcio"} == set(described.versions)
        papers, authors = ((0, 40), (40, 50), (90, 60)), ((0, 30), (30, 0), (30, 25))
        assert [
            (t.kind, t.type, t.first_id, t.count, t.dim, t.dtype) for t in described.tables
        ] == [
            ("features", "paper", *papers[server], 5, "float32"),
            ("features", "author", *authors[server], 3, "float16"),
            ("labels", "paper", *papers[server], 1, "int64"),
        ]
    swapped = [addresses[1], addresses[0], addresses[2]]
    with (
        FeatureClient(swapped) as client,
        pytest.raises(BadReply, match=r"it is server . of 3, expected . of 3: addresses go by"),
    ):
        client.wait_until_serving(10)


def test_descriptions_and_all_ids_of_the_graph_are_read(addresses, partitioned, tmp_path, serve):
    """A client with a small limit asks for several ranges."""
    with FeatureClient(addresses, deadline=20.0, ids_per_request=100) as client:
        described = client.describe_graph()
        assert json.loads(described.graph) == {"name": "größer"}
        assert json.loads(described.partition) == {"topology": "replicated"}
        counts = {(array.kind, array.type): array.count for array in described.ids}
        assert counts == {key: ids.size for key, ids in partitioned.ids.items()}
        elsewhere = {array.type for array in client.describe_graph(1).ids}
        assert "paper/cites/paper" not in elsewhere
        for (kind, name), ids in partitioned.ids.items():
            np.testing.assert_array_equal(client.read_ids(kind, name, 0, ids.size), ids)
            np.testing.assert_array_equal(client.read_ids(kind, name, 290, 7), ids[290:297])
            assert client.read_ids(kind, name, 3, 0).size == 0
        for array, text in (
            (("splits", "../splits/train", 0, 1), "no splits of '../splits/train'; it has train"),
            (("shard", "train", 0, 1), "kind: expected one of splits, original_ids, global_ids"),
            (("splits", "train", 299, 2), "expected a range of 300, found 299 and 2"),
            (("splits", "train", -1, 2), "expected a range of 300, found -1 and 2"),
        ):
            with pytest.raises(InvalidRequest, match=re.escape(text)):
                client.read_ids(*array)
    (tmp_path / "server-0").mkdir()
    write_manifest(tmp_path / "server-0", 0, 1, [])
    with (
        FeatureClient([serve(tmp_path / "server-0").address]) as client,
        pytest.raises(InvalidRequest, match=r"server 0 has no readable graph\.json"),
    ):
        client.describe_graph()


@pytest.mark.parametrize(
    ("table", "ids", "out", "text"),
    [
        (PAPERS, [41, 90, 40], (3, 5, "f4"), "id 90 is outside [40, 90), the range of features/pa"),
        (PAPERS, [-5], (1, 5, "f4"), "id -5 is outside [40, 90)"),
        (PAPERS, [2**62], (1, 5, "f4"), f"id {2**62} is outside [40, 90)"),
        (AUTHORS, [30], (1, 3, "f2"), "id 30 is outside [30, 30)"),
        (("features", "venue"), [4], (1, 5, "f4"), "no features/'venue'; it has features/author, "),
        (("labels", "author"), [40], (1, 1, "i8"), "no labels/'author'; it has features/author"),
        (("weights", "paper"), [4], (1, 5, "f4"), "has no weights/'paper'; it has features/author"),
        (PAPERS, [40], (1, 5, "f2"), "of server 1 is float32, not 'float16'"),
        (PAPERS, [40], (1, 4, "f4"), "have 5 elements, not 4"),
    ],
)
def test_a_refusal_names_what_was_asked(client, addresses, table, ids, out, text):
    *shape, dtype = out
    with pytest.raises(InvalidRequest) as caught:
        client.fetch_rows(*table, {1: np.array(ids)}, np.zeros(shape, dtype), {1: ALL})
    operation, error = f"FetchRows {'/'.join(table)}", caught.value
    assert text in str(error)
    assert f"feature server 1 at {addresses[1]}: {operation}: " in str(error)
    names = (error.server, error.address, error.operation, error.limit_seconds)
    assert names == (1, addresses[1], operation, 10.0)


def test_a_refusal_ends_the_fetch_and_the_client_lives_on(client, partitioned):
    out = np.zeros((200_001, 5), np.float32)
    ids = {0: np.zeros(100_000, np.int64), 1: np.array([7]), 2: np.full(100_000, 90)}
    places = {0: slice(0, 100_000), 1: slice(100_000, 100_001), 2: slice(100_001, None)}
    with pytest.raises(InvalidRequest, match="id 7 is outside"):
        client.fetch_rows(*PAPERS, ids, out, places)
    ids[1][:] = 40
    client.fetch_rows(*PAPERS, ids, out, places)
    expected = partitioned.rows[PAPERS][np.repeat([0, 40, 90], [100_000, 1, 100_000])]
    np.testing.assert_array_equal(out, expected)


def test_requests_beyond_a_servers_limits_are_refused(serve):
    """The client does not know the limits, since it did not call ``wait_until_serving``."""
    with FeatureClient([serve(ids_per_request=100).address], deadline=20) as client:
        assert client.describe(0).ids_per_request == 100
        for count, text in ((101, "101 ids exceed the limit of 100 ids"), (200_000, "larger than")):
            with pytest.raises(InvalidRequest, match=text):
                fetch(client, [0] * count)


@pytest.mark.parametrize(
    ("ids", "out", "places", "text"),
    [
        ({3: [0]}, np.zeros((1, 5), "f4"), {3: ALL}, "server 3 is outside [0, 3)"),
        ({0: [0]}, np.zeros((1, 5), "f4"), {1: ALL}, "ids are for servers [0], places for [1]"),
        ({0: [0, 1]}, np.zeros((1, 5), "f4"), {0: ALL}, "places for server 0: 1 rows for 2 ids"),
        ({0: [0.5]}, np.zeros((1, 5), "f4"), {0: ALL}, "expected [n] int64, found float64 (1,)"),
        ({0: [0]}, np.zeros((5, 1), "f4").T[:, ::2], {0: ALL}, "out: expected a writable C-cont"),
        ({0: [0]}, np.zeros((1, 5), "c8"), {0: ALL}, "out: dtype <c8 is not one of float16"),
        ({0: [0]}, np.zeros((1, 5), "f4"), {0: np.array([1])}, "1 is outside [0, 1), rows of out"),
        ({0: [0]}, np.zeros((1, 5), "f4"), {0: np.array([0.0])}, "expected a slice or [n] int64"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_sending(ids, out, places, text):
    counted: list[Any] = []
    arrays = {server: np.array(values) for server, values in ids.items()}
    with (
        FeatureClient(["127.0.0.1:1"] * 3, on_transfer=lambda *a: counted.append(a)) as client,
        pytest.raises(BadRequest, match=re.escape(text)),
    ):
        client.fetch_rows(*PAPERS, arrays, out, places)
    assert counted == []


def test_what_could_never_be_asked_is_refused(monkeypatch):
    for options in ({"deadline": 0.0}, {"ids_per_request": 0}):
        with pytest.raises(BadRequest, match="expected deadline > 0 and ids_per_request >= 1"):
            FeatureClient(["127.0.0.1:1"], **options)
    client = FeatureClient(["127.0.0.1:1"])
    for name, text in (("n" * 257, "at most 256 bytes"), ("\udc80", "expected text")):
        for table in ((name, "paper"), ("features", name)):
            with pytest.raises(BadRequest, match=text):
                client.fetch_rows(*table, {0: np.array([1])}, np.zeros((1, 1), "f4"), {0: ALL})
    client.close()
    client.close()
    # As in a process that was forked before, it has no connections, and must not make any.
    monkeypatch.setattr(feature_client, "Connection", None)
    with pytest.raises(BadRequest, match="the client is closed"):
        client.describe(0)
