"""Servers draw the neighbors that a rank with all edges would draw, in one request or several."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from cache_server.client import FeatureClient
from cache_server.client.calls import DrawCall, RemoteDraw
from cache_server.draws.counter import draw_key
from cache_server.draws.neighbor_lists import NOTHING, NeighborLists
from cache_server.draws.spec import (
    METHODS,
    VERSION,
    ExcludedEdges,
    Method,
    SamplingRequest,
    SamplingSpec,
)
from cache_server.errors import BadRequest, InvalidRequest, ServerUnavailable
from cache_server.generated import features_pb2
from cache_server.store.shard import Shard
from cache_server.wire import SAMPLE_NEIGHBORS, encode_ids, read_neighbours, write_neighbours
from hopper.graph import GraphDirectory, Relation
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.partition import PartitionedGraph, partition_graph

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

NODES, EDGES, SERVERS, HUB = 90, 2200, 3, 7
EDGE = Relation("node", "edge", "node")


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> PartitionedGraph:
    """A graph with weights, times and a hub, whose topology is partitioned."""
    generator = np.random.default_rng(3)
    ends = generator.integers(0, NODES, (2, EDGES))
    ends[1, :300] = HUB
    folder = tmp_path_factory.mktemp("neighbours")
    graph = GraphDirectory.from_arrays(
        folder / "graph",
        ends,
        features=generator.random((NODES, 2)),
        labels=generator.integers(0, 2, NODES),
        edge_weights=np.exp(generator.normal(0, 2, EDGES)),
        times={tuple(EDGE): generator.integers(0, 40, EDGES)},
        options=ImportOptions(split=RandomSplit(0.5, 0.2)),
    )
    return partition_graph(graph, folder / "parts", SERVERS, "random", topology="partitioned")


@pytest.fixture(scope="module")
def client(parts, serve_partitions) -> FeatureClient:
    # Few ids in a request, so that draws take several.
    addresses = serve_partitions(parts.path, SERVERS, "--ids-per-request", "16")
    client = FeatureClient(addresses, deadline=60)
    client.wait_until_serving(120)
    return client


@pytest.fixture(scope="module")
def lists(parts) -> NeighborLists:
    """The neighbour lists of all servers, put together."""
    ids = parts.original_ids("node")
    return parts.topology(EDGE).lists(ids, ids)


def make_spec(method: Method, fanout: int, *, seed: int = 0) -> SamplingSpec:
    """A spec whose draws last for three iterations."""
    return SamplingSpec(method, fanout, draw_key(1, seed, 0, 7, 0, 5, 3))


def test_servers_draw_and_leave_out_what_a_rank_with_all_edges_does(client, parts, lists):
    """Of the pairs that are left out some have edges (many into one node), some have none, and some
    are named twice. A request holds 16 nodes and 16 pairs at most."""
    generator, indices = np.random.default_rng(12), lists.arrays.indices
    hub = int(parts.global_ids("node")[HUB])
    dst = np.repeat(np.arange(NODES), np.diff(lists.arrays.indptr))
    into_hub = np.flatnonzero(dst == hub)[:7]
    edges = np.concatenate([into_hub, into_hub[:2], generator.choice(EDGES, 60)])
    others = generator.integers(0, NODES, (2, 9))
    excluded = lists.exclude(
        np.concatenate([indices[edges], others[0]]), np.concatenate([dst[edges], others[1]])
    )
    assert excluded.places.size > 60
    for method, fanout in itertools.product(METHODS, (-1, 1, 3, 40)):
        # The hub is always among the nodes; sometimes there are no others.
        nodes = np.append(generator.integers(0, NODES, generator.integers(0, 60)), hub)
        how = make_spec(method, fanout, seed=int(generator.integers(0, 99)))
        check_draws(client, parts, lists, how, nodes, NOTHING)
        if method != "labor" and fanout != 1:
            check_draws(client, parts, lists, how, nodes, excluded)


def test_directories_with_ids_of_eight_bytes_are_read(parts, tmp_path):
    """Earlier commits wrote them."""
    wide = Path(shutil.copytree(parts.path, tmp_path / "wide"))
    for file in (*wide.glob("maps/*/*.npy"), *wide.glob("topology/**/*degrees-*.npy")):
        numbers = np.load(file)
        assert numbers.dtype == np.int32
        np.save(file, numbers.astype(np.int64))
    graphs = PartitionedGraph.open(wide), parts
    for read in ("original_ids", "global_ids"):
        wide_ids, ids = (getattr(graph, read)("node")[:] for graph in graphs)
        assert wide_ids.dtype == ids.dtype == np.int64
        np.testing.assert_array_equal(wide_ids, ids)
    nodes = np.arange(*parts.book.range("node", 1))
    for method in METHODS:
        spec, none = make_spec(method, 3), nodes[:0]
        draw = SamplingRequest(nodes, spec, nodes if spec.in_time else None, none, none)
        drawn = []
        for graph in graphs:
            shard = Shard.open(graph.path / "server-1")
            [(neighbors, degrees)] = shard.edges_into(str(EDGE)).draw(draw, 1 << 20)
            drawn.append(np.concatenate([*neighbors, degrees]))
        np.testing.assert_array_equal(drawn[0], drawn[1])


def test_servers_tell_the_original_ids_of_all_nodes(client, parts):
    """Though the ids of each server's nodes are in a file of their own."""
    described = {(array.kind, array.type): array.count for array in client.describe_graph(1).ids}
    assert described["original_ids", "node"] == NODES
    told = client.read_ids("original_ids", "node", 3, NODES - 3, server=1)
    np.testing.assert_array_equal(told, parts.original_ids("node")[3:])


def check_draws(
    client: FeatureClient,
    parts: PartitionedGraph,
    lists: NeighborLists,
    how: SamplingSpec,
    ids: np.ndarray,
    excluded: ExcludedEdges,
) -> None:
    homes, times = parts.book.home("node", ids), ids * 7 % 45
    pairs = excluded.src, excluded.dst

    def make_draw(server: int, step: int) -> RemoteDraw:
        nodes, until = (array[homes == server][::step].copy() for array in (ids, times))
        moments = until if how.in_time else None
        return RemoteDraw(str(EDGE), how, nodes, NODES, moments, *pairs)

    # Two draws a server, of which the second is in another order.
    draws_by_server = {s: [make_draw(s, 1), make_draw(s, -1)] for s in range(SERVERS)}
    nbytes = np.zeros(2, np.int64)

    def count(_server: int, sent: int, received: int) -> None:
        nbytes[:] += sent, received

    client.begin_sampling(draws_by_server, count)()
    for draws in draws_by_server.values():
        for draw in draws:
            places = lists.in_time(excluded) if how.in_time else excluded
            expected = lists.draw(draw.nodes, how, places, draw.until)
            for expected_array, array in zip(expected, draw.neighbors(), strict=True):
                np.testing.assert_array_equal(expected_array, array)
            if draw.until is not None:
                degrees = lists.count_until(draw.nodes, draw.until)
                np.testing.assert_array_equal(degrees, draw.in_degrees())
    assert nbytes[0] >= 8 * 2 * ids.size
    assert nbytes[1] > 0


def test_what_cannot_be_drawn_is_refused(client, parts):
    first, stop = parts.book.range("node", 1)
    own = f"[{first}, {stop})"
    one, two, many = (encode_ids(np.full(count, first)) for count in (1, 2, 17))
    far, negative = (encode_ids(np.array([node])) for node in (stop, -1))
    sources, destinations = "without_sources", "without_destinations"
    refusals: dict[str, dict[str, Any]] = {
        "ids: 17 ids exceed the limit of 16 ids": {"nodes": many},
        f"nodes: id {stop} is outside {own}, the range of in-edges": {"nodes": far},
        "no in-edges of 'a/b/c'; it has those of node/edge/node": {"relation": "a/b/c"},
        "method: expected one of uniform, labor": {"method": "nearest"},
        "fanout: expected -1 or 1 to 1048576, found 0": {"fanout": 0},
        "times: method recent wants one for each node, found none": {"method": "recent"},
        "draws of version 3, the client expects version 2": {"version": 2},
        "draws of version 3, the client expects an older one": {"version": 0},
        "elapsed: expected less than the dependence of 3, found 3": {"dependence": 3, "elapsed": 3},
        "times: 3 bytes are not a multiple of 8": {"method": "temporal", "times": b"odd"},
        "times: expected one for each of 1 nodes, found 2": {"method": "recent", "times": two},
        "times: 17 ids exceed the limit of 16 ids": {"method": "temporal", "times": many},
        "times: method uniform draws at no time, found 1": {"times": one},
        f"{sources}: 3 bytes": {sources: b"odd"},
        f"{sources}: expected one for each of 2 d": {sources: one, destinations: two},
        f"{destinations}: id {stop} is outside {own}": {sources: one, destinations: far},
        f"{sources}: id -1 is outside [0, {NODES})": {sources: negative, destinations: one},
        f"{destinations}: 17 ids exceed the limit": {destinations: many},
        f"{sources}: method labor": {"method": "labor", sources: one, destinations: one},
    }
    with grpc.insecure_channel(client.addresses[1]) as channel:
        call = channel.unary_stream(SAMPLE_NEIGHBORS)
        for match, fields in refusals.items():
            defaults: dict[str, Any] = {"relation": str(EDGE), "version": VERSION, "nodes": one}
            defaults |= {"method": "uniform", "fanout": 2, "dependence": 1}
            draw = features_pb2.NeighborDraw(**defaults | fields)
            request = features_pb2.SampleNeighborsRequest(draws=[draw])
            with pytest.raises(grpc.RpcError) as caught:
                list(call(request.SerializeToString(), timeout=10))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert match in str(caught.value.details())
            assert "\n" not in str(caught.value.details())
    pairs = np.arange(17), np.full(17, first)
    spec = make_spec("uniform", 2)
    draw_all = RemoteDraw(str(EDGE), spec, np.array([first]), NODES, None, *pairs)
    with pytest.raises(
        BadRequest, match="17 edges into one node are left out, more than the limit"
    ):
        client.begin_sampling({1: [draw_all]})()


def test_replies_that_do_not_fit_are_refused():
    drawn = np.array([0, 2, 2]), np.array([4, 9]), np.array([0, 1])
    nodes = np.array([3, 5], np.int64)
    message = write_neighbours(drawn, nodes[:0], 8)
    arrays = [array.tolist() for array in read_neighbours(message, 8)]
    assert arrays == [[2, 0], [], [4, 9], [0, 1]]
    with pytest.raises(ValueError, match="a chunk of 28 bytes where 2 edges of 2 nodes stand"):
        read_neighbours(message, 8, in_time=True)
    in_time = write_neighbours(drawn, np.array([5, 7]), 8)
    assert read_neighbours(in_time, 8, in_time=True)[1].tolist() == [5, 7]

    def take_reply(sources: int, end: int) -> None:
        how = make_spec("uniform", 2)
        question = DrawCall(0, [RemoteDraw("a/b/a", how, nodes, sources)])
        question.end = end
        question.take(message, 8)

    take_reply(10, 2)
    with pytest.raises(ValueError, match=r"source 9 is outside \[0, 9\)"):
        take_reply(9, 2)
    with pytest.raises(ValueError, match="neighbors of 2 nodes where 1 were due"):
        take_reply(10, 1)
    with pytest.raises(ValueError, match="are not those that were sent"):
        read_neighbours(message, 9)


def test_servers_that_cannot_draw_are_named(tmp_path, serve_partitions, community_graph):
    partition_graph(community_graph, tmp_path / "parts", 1, "random")
    draw = RemoteDraw(str(EDGE), make_spec("uniform", 2), np.array([0]), 300)
    with FeatureClient(serve_partitions(tmp_path / "parts", 1), deadline=20) as client:
        client.wait_until_serving(60)
        with pytest.raises(InvalidRequest, match="it has those of nothing"):
            client.begin_sampling({0: [draw]})()
    with (
        FeatureClient(["127.0.0.1:1"], deadline=0.3) as client,
        pytest.raises(ServerUnavailable, match=r"server 0 .*: SampleNeighbors: unavailable"),
    ):
        client.begin_sampling({0: [draw]})()
