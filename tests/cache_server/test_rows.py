"""Rows arrive as the files hold them, for any ids, servers, dtypes and places, in any thread."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from cache_server.client import FeatureClient
from cache_server.generated import features_pb2, features_pb2_grpc
from cache_server.wire import CHUNK_BYTES, encode_ids


@pytest.mark.parametrize(
    "table", [("features", "paper"), ("features", "author"), ("labels", "paper")]
)
@pytest.mark.parametrize("count", [0, 1, 17, 2000])
def test_random_ids_of_several_servers_give_their_rows(client, partitioned, table, count):
    rows = partitioned.rows[table]
    ids = np.random.default_rng(count).integers(0, len(rows), count)
    out = np.full((count, *rows.shape[1:]), 77, rows.dtype)
    client.fetch_rows(*table, *_for(partitioned, table[1], ids, out))
    np.testing.assert_array_equal(out, rows[ids])


def test_slices_fill_only_their_rows(client, partitioned):
    out = np.full((10, 5), -1, np.float32)
    ids = {0: np.array([39, 0, 39]), 2: np.array([149, 90])}
    client.fetch_rows("features", "paper", ids, out, {0: slice(1, 4), 2: slice(9, 5, -2)})
    expected = np.full((10, 5), -1, np.float32)
    expected[1:4] = partitioned.rows["features", "paper"][[39, 0, 39]]
    expected[[9, 7]] = partitioned.rows["features", "paper"][[149, 90]]
    np.testing.assert_array_equal(out, expected)


def test_many_chunks_and_split_requests_with_bytes_counted(addresses, partitioned):
    """More rows than fit one chunk come in three requests, each counted with its messages."""
    counted = []
    rows = partitioned.rows["features", "paper"]
    ids = np.random.default_rng(0).integers(0, 40, 2 * CHUNK_BYTES // 20 + 13)
    out = np.zeros((ids.size, 5), np.float32)
    with FeatureClient(
        addresses,
        on_transfer=lambda *bytes_moved: counted.append(bytes_moved),
        ids_per_request=ids.size // 2 - 1,
    ) as client:
        client.fetch_rows(
            "features", "paper", {0: ids, 1: ids[:0]}, out, {0: slice(None), 1: slice(0)}
        )
    np.testing.assert_array_equal(out, rows[ids])
    assert [server for server, _, _ in counted] == [0, 0, 0]
    sent = sum(sent for _, sent, _ in counted)
    received = sum(received for _, _, received in counted)
    assert 8 * ids.size < sent < 8 * ids.size + 300
    assert out.nbytes < received < out.nbytes + 100


def test_threads_share_a_client(client, partitioned):
    rows = partitioned.rows["features", "paper"]

    def fetch(seed):
        ids = np.random.default_rng(seed).integers(0, len(rows), 3000)
        out = np.zeros((ids.size, 5), np.float32)
        client.fetch_rows("features", "paper", *_for(partitioned, "paper", ids, out))
        return np.array_equal(out, rows[ids])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(fetch, range(40)))


def test_a_generated_stub_reads_the_same_bytes(addresses, partitioned):
    """Rows written by hand in wire.py are the protobuf messages that features.proto declares."""
    ids = np.array([140, 91, 140])
    request = features_pb2.FetchRowsRequest(
        kind="features", type="paper", ids=encode_ids(ids), dtype="float32", dim=5
    )
    with grpc.insecure_channel(addresses[2]) as channel:
        chunks = list(features_pb2_grpc.FeatureServiceStub(channel).FetchRows(request, timeout=10))
    data = b"".join(chunk.data for chunk in chunks)
    assert data == partitioned.rows["features", "paper"][ids].tobytes()


def test_servers_describe_their_tables_and_are_healthy(client, partitioned):
    client.wait_until_serving(10)
    for server in range(3):
        description = client.describe(server)
        assert (description.server, description.servers) == (server, 3)
        assert {"python", "numpy", "grpcio"} == set(description.versions)
        assert [
            (t.kind, t.type, t.first_id, t.count, t.dim, t.dtype) for t in description.tables
        ] == [
            ("features", "paper", [0, 40, 90][server], [40, 50, 60][server], 5, "float32"),
            ("features", "author", [0, 30, 30][server], [30, 0, 25][server], 3, "float16"),
            ("labels", "paper", [0, 40, 90][server], [40, 50, 60][server], 1, "int64"),
        ]


def _for(partitioned, type, ids, out):
    by_server, places = partitioned.split(type, ids)
    return by_server, out, places
