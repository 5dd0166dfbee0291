"""Every refusal is INVALID_ARGUMENT, with a text that names what was wrong and reaches the user."""

import grpc
import numpy as np
import pytest

from cache_server.client import FeatureClient
from cache_server.errors import BadReply, BadRequest, InvalidRequest
from cache_server.generated import features_pb2, features_pb2_grpc
from cache_server.wire import encode_ids

ALL = slice(None)


PAPERS, AUTHORS, LABELS = ("features", "paper"), ("features", "author"), ("labels", "author")


@pytest.mark.parametrize(
    ("table", "ids", "out", "text"),
    [
        (PAPERS, [41, 90, 40], (3, 5, "f4"), "id 90 is outside [40, 90), the range of features/pa"),
        (PAPERS, [-5], (1, 5, "f4"), "id -5 is outside [40, 90)"),
        (PAPERS, [2**62], (1, 5, "f4"), f"id {2**62} is outside [40, 90)"),
        (AUTHORS, [30], (1, 3, "f2"), "id 30 is outside [30, 30)"),
        (("features", "venue"), [4], (1, 5, "f4"), "no features/'venue'; it has features/author, "),
        (LABELS, [40], (1, 1, "i8"), "has no labels/'author'; it has features/author"),
        (("weights", "paper"), [4], (1, 5, "f4"), "has no weights/'paper'; it has features/author"),
        (PAPERS, [40], (1, 5, "f2"), "of server 1 is float32, not 'float16'"),
        (PAPERS, [40], (1, 4, "f4"), "have 5 elements, not 4"),
    ],
)
def test_a_refusal_names_what_was_asked(client, addresses, table, ids, out, text):
    *shape, dtype = out
    with pytest.raises(InvalidRequest) as caught:
        client.fetch_rows(*table, {1: np.array(ids)}, np.zeros(shape, dtype), {1: ALL})
    assert text in str(caught.value)
    assert f"feature server 1 at {addresses[1]}: FetchRows {'/'.join(table)}: " in str(caught.value)
    assert (caught.value.server, caught.value.address) == (1, addresses[1])
    assert caught.value.operation == f"FetchRows {'/'.join(table)}"
    assert caught.value.limit_seconds == 10.0


def test_a_refusal_ends_the_fetch_and_the_client_lives_on(client, partitioned):
    out = np.zeros((200_001, 5), np.float32)
    ids = {0: np.zeros(100_000, np.int64), 1: np.array([7]), 2: np.full(100_000, 90)}
    places = {0: slice(0, 100_000), 1: slice(100_000, 100_001), 2: slice(100_001, None)}
    with pytest.raises(InvalidRequest, match="id 7 is outside"):
        client.fetch_rows("features", "paper", ids, out, places)
    ids[1][:] = 40
    client.fetch_rows("features", "paper", ids, out, places)
    expected = partitioned.rows["features", "paper"]
    np.testing.assert_array_equal(out, expected[np.repeat([0, 40, 90], [100_000, 1, 100_000])])


def test_oversized_and_truncated_requests_are_refused(partitioned, start):
    address = start(partitioned.path, 0, "--ids-per-request", "100").address
    with FeatureClient([address], deadline=5) as client:
        assert client.describe(0).ids_per_request == 100
        out = np.zeros((101, 5), np.float32)
        with pytest.raises(InvalidRequest, match="101 ids exceed the limit of 100 ids in one"):
            client.fetch_rows("features", "paper", {0: np.zeros(101, np.int64)}, out, {0: ALL})
    for ids, text in (
        (encode_ids(np.arange(3))[:-1], "ids: 23 bytes are not a multiple of 8 (int64)"),
        (encode_ids(np.zeros(3000, np.int64)), "ids: 3000 ids exceed the limit of 100 ids"),
    ):
        request = features_pb2.FetchRowsRequest(
            kind="features", type="paper", ids=ids, dtype="float32", dim=5
        )
        with grpc.insecure_channel(address) as channel:
            call = features_pb2_grpc.FeatureServiceStub(channel).FetchRows(request, timeout=5)
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert text in caught.value.details()


def test_addresses_in_the_wrong_order_are_refused(addresses):
    swapped = [addresses[1], addresses[0], addresses[2]]
    with (
        FeatureClient(swapped) as client,
        pytest.raises(BadReply, match=r"it is server . of 3, expected . of 3: addresses go by"),
    ):
        client.wait_until_serving(10)


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
    counted = []
    arrays = {server: np.array(values) for server, values in ids.items()}
    with (
        FeatureClient(["127.0.0.1:1"] * 3, on_transfer=lambda *a: counted.append(a)) as client,
        pytest.raises(BadRequest) as caught,
    ):
        client.fetch_rows("features", "paper", arrays, out, places)
    assert text in str(caught.value)
    assert counted == []


@pytest.mark.parametrize("options", [{"deadline": 0.0}, {"ids_per_request": 0}])
def test_limits_that_could_never_end_are_refused(options):
    with pytest.raises(BadRequest, match="expected deadline > 0 and ids_per_request >= 1"):
        FeatureClient(["127.0.0.1:1"], **options)


def test_a_closed_client_says_so():
    client = FeatureClient(["127.0.0.1:1"])
    client.close()
    client.close()
    with pytest.raises(BadRequest, match="the client is closed"):
        client.describe(0)


@pytest.mark.parametrize(
    ("name", "text"), [("n" * 257, "at most 256 bytes"), ("\udc80", "expected text")]
)
def test_no_absurd_name_is_asked_for(name, text):
    with FeatureClient(["127.0.0.1:1"]) as client:
        for table in ((name, "paper"), ("features", name)):
            with pytest.raises(BadRequest, match=text):
                client.fetch_rows(*table, {0: np.array([1])}, np.zeros((1, 1), "f4"), {0: ALL})
