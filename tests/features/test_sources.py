"""What every FeatureSource promises, and what single ones refuse, count and send."""

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cache_server.client import FeatureClient
from cache_server.errors import BadRequest
from cache_server.feature_codec import CODECS, FeatureForm
from cache_server.service.server import FeatureServer
from cache_server.store import mapped_rows
from cache_server.store.manifest import set_division
from cache_server.store.shard import Shard
from hopper.cluster.cluster import Cluster
from hopper.cluster.traffic import CAUSES, Traffic
from hopper.errors import (
    ClusterError,
    ConfigError,
    DeadlineExceeded,
    GraphError,
    RequestError,
    ServerLost,
)
from hopper.features import (
    Lookups,
    PartitionedRows,
    PregatheredRows,
    RemoteRows,
    RowCounts,
    download_graph,
)
from hopper.features.row_cache import RowCache
from hopper.features.wire_error import measure_wire_error, tell_wire_error
from hopper.partition import PartitionedGraph, partition_graph
from tests.tcp_proxy import TcpProxy

SERVER = 1


FEATURES = ("paper", "author", "venue", "ghost", "journal", "series")
LABELS = ("paper", "author", "venue", "word")
TABLES = [("features", name) for name in FEATURES] + [("labels", name) for name in LABELS]


@pytest.mark.parametrize(("kind", "node_type"), TABLES)
def test_rows_come_in_the_requested_order(source, tables, kind, node_type):
    """Random ids with repeats, and orders that are read by another path, bit for bit."""
    expected, all_ids = tables.rows(source.graph, kind, node_type), source.ids(node_type)
    generator = np.random.default_rng(5)
    requests = [all_ids, all_ids[::-1].copy(), all_ids[:0]]
    if all_ids.size:
        requests += [generator.choice(all_ids, size) for size in (1, 2, 30, 200)]
    for ids in requests:
        rows = source.rows.gather(kind, node_type, ids)
        assert rows.dtype == expected.dtype
        assert rows.shape == (ids.size, expected.shape[1])
        assert np.array_equal(rows, expected[ids])


def test_rows_are_the_callers_own(source, tables):
    """Torch uses returned rows without a copy, so they must be writable and shared with no one."""
    ids = source.ids("paper")[:4]
    tensor = torch.from_numpy(source.rows.gather("features", "paper", ids))
    tensor.zero_()
    expected = tables.rows(source.graph, "features", "paper")[ids]
    assert np.array_equal(source.rows.gather("features", "paper", ids), expected)


@pytest.mark.parametrize("kind", ["features", "labels"])
def test_what_does_not_exist_is_named(source, kind):
    for bad_id in (-1, 90, 1 << 40):
        with pytest.raises(GraphError, match=str(bad_id)):
            source.rows.gather(kind, "paper", np.append(source.ids("paper")[:3], bad_id))
    lacking = {"features": "word", "labels": "ghost"}[kind]
    for size in (0, 3):
        with pytest.raises(GraphError, match="'editor'"):
            source.rows.gather(kind, "editor", np.arange(size))
        with pytest.raises(GraphError, match=f"'{lacking}' has no {kind}"):
            source.rows.gather(kind, lacking, source.ids(lacking)[:size])


class Meter(RemoteRows):
    """Remote rows, and the bytes that they take."""

    def feature_bytes(self) -> int:
        """Return the bytes since the last call, all of which must be counted as features."""
        taken = self._traffic.take()
        assert set(taken) == set(CAUSES)
        assert sum(taken.values()) == taken["feature"]
        return taken["feature"]


@pytest.fixture
def meter(tables) -> Iterator[Meter]:
    meter = Meter(tables.graph, tables.addresses, 20.0)
    meter.wait_until_serving(20.0)
    meter.feature_bytes()
    yield meter
    meter.close()


@pytest.fixture
def rows(tables, meter) -> PartitionedRows:
    return PartitionedRows(tables.graph, SERVER, meter)


def test_a_rank_counts_the_tables_of_its_server_together(tables, rows, monkeypatch):
    """One table fits half of the memory, and all together do not. Rows are then copied to one
    tensor with those of other servers, and are not copied again. They are multiplied in the same
    parts, to the same bits."""
    ids = np.random.default_rng(0).permutation(90)
    mapped = [len(part) for part in rows.stored("paper", ids)._reader.parts]
    papers = tables.graph.features("paper", SERVER)
    monkeypatch.setattr(mapped_rows, "_SMALL_TABLE_BYTES", 0)
    monkeypatch.setattr(mapped_rows, "available_memory", lambda: 2 * papers.nbytes)
    rows = PartitionedRows(tables.graph, SERVER, rows.remote)
    expected = torch.from_numpy(tables.rows(tables.graph, "features", "paper")[ids])
    remote = ids[~rows.is_local("paper", ids)]
    for source in (rows, PregatheredRows(rows, {"paper": [remote]})):
        stored = source.stored("paper", ids)
        assert torch.equal(stored.to_tensor(), expected)
        assert stored.to_tensor().data_ptr() == stored._reader.parts[0].table.data_ptr()
        assert [len(part) for part in stored._reader.parts] == mapped


def test_remote_rows_are_counted(tables, meter):
    """The count is at least the rows' own bytes, and little more once there are many."""
    ids = np.tile(np.arange(90), 50)
    payload = tables.rows(tables.graph, "features", "paper")[ids].nbytes
    meter.gather("features", "paper", ids)
    counted_bytes = meter.feature_bytes()
    assert payload + ids.nbytes // 4 < counted_bytes < 1.1 * (payload + ids.nbytes)


def test_pregathered_rows_are_fetched_once(tables, rows, meter):
    """Groups overlap; each remote row is fetched once, and counted remotely for every group."""
    groups = [np.arange(0, 60), np.arange(30, 90), np.array([89, 0, 0])]
    remote_ids = [ids[~rows.is_local("paper", ids)] for ids in groups]
    unique_ids = np.unique(np.concatenate(remote_ids))
    pregathered = PregatheredRows(rows, {"paper": groups})
    assert unique_ids.size * 7 * 4 < meter.feature_bytes()
    expected = tables.rows(tables.graph, "features", "paper")
    for ids in groups:
        assert np.array_equal(pregathered.gather("features", "paper", ids), expected[ids])
    assert meter.feature_bytes() == 0
    counts = rows.take_rows()
    remote = sum(ids.size for ids in remote_ids)
    assert (counts.remote_unique, counts.remote) == (unique_ids.size, remote)
    assert counts.local == sum(ids.size for ids in groups) - remote
    # A further source fetches only what the earlier one lacks.
    authors = np.arange(41)
    requests = {"paper": groups, "author": [authors]}
    wider = PregatheredRows(rows, requests, earlier=pregathered)
    missing = int((~rows.is_local("author", authors)).sum())
    assert rows.take_rows().remote_unique == missing
    meter.feature_bytes()
    for name, ids in (("paper", groups[0]), ("author", authors)):
        of_type = tables.rows(tables.graph, "features", name)[ids]
        assert np.array_equal(wider.gather("features", name, ids), of_type)
    assert meter.feature_bytes() == 0


def test_cached_rows_are_not_fetched(tables, rows, meter):
    """Cached and fetched rows are counted apart, pre-gathered or not. Labels are not cached."""
    all_ids, local_ids = np.arange(90), tables.local_ids("paper")
    remote_ids = np.setdiff1d(all_ids, local_ids)
    cached_ids, missing = remote_ids[:20], remote_ids.size - 20
    cache = RowCache(90, 20, 7, "float32")
    cache.put(cached_ids, meter.gather("features", "paper", cached_ids))
    expected = tables.rows(tables.graph, "features", "paper")
    meter.feature_bytes()
    rows.attach_cache({"paper": cache, "author": RowCache(41, 0, 3, "float16")})
    assert np.array_equal(rows.gather("features", "paper", cached_ids), expected[cached_ids])
    assert meter.feature_bytes() == 0
    assert np.array_equal(rows.gather("features", "paper", all_ids), expected)
    assert meter.feature_bytes() < missing * 7 * 4 * 1.5 + 1000
    assert rows.take_rows() == RowCounts(
        local=local_ids.size,
        remote=20 + remote_ids.size,
        remote_unique=missing,
        cached=40,
        lookups={"author": Lookups(), "paper": Lookups(40, missing)},
    )
    rows.gather("labels", "paper", all_ids)
    assert rows.take_rows().cached == 0
    pregathered = PregatheredRows(rows, {"paper": [all_ids, remote_ids[:30]]})
    assert np.array_equal(pregathered.gather("features", "paper", remote_ids), expected[remote_ids])
    counts = rows.take_rows()
    assert (counts.cached, counts.remote_unique) == (20, missing)


@pytest.mark.parametrize("fetched", [[], [0]])
def test_a_row_that_was_not_pregathered(tables, rows, fetched):
    """``fetched`` rows are on server 0: once none was pre-gathered, and once one."""
    pregathered = PregatheredRows(rows, {"paper": [np.array(fetched, np.int64)]})
    missing = int(tables.graph.book.offsets["paper"][SERVER + 1])
    ids = np.array([*fetched, tables.local_ids("paper")[0], missing])
    with pytest.raises(GraphError, match=f"features/paper: node {missing} was not pre-gathered"):
        pregathered.gather("features", "paper", ids)


def test_what_needs_other_servers_says_so(tables):
    rows = PartitionedRows(tables.graph, SERVER, None)
    message = "node 0 is not stored on the only server"
    with pytest.raises(GraphError, match=message):
        rows.gather("features", "paper", np.array([0]))
    with pytest.raises(GraphError, match=message):
        PregatheredRows(rows, {"paper": [np.array([0])]})
    with pytest.raises(ConfigError, match=r"cluster\.servers: expected 3 addresses.*got 2"):
        RemoteRows(tables.graph, tables.addresses[:2], 1.0)


FORK = r"""
import os, sys
import numpy as np
from hopper.features import PartitionedRows, RemoteRows
from hopper.partition import PartitionedGraph

path, *addresses = sys.argv[1:]
graph = PartitionedGraph.open(path)
used, unused = (PartitionedRows(graph, 1, RemoteRows(graph, addresses, 20.0)) for _ in "ab")
used.remote.gather("features", "paper", np.arange(90))
child = os.fork()
for rows in (used, unused):
    os.write(1, rows.gather("features", "paper", np.arange(90)).tobytes())
if child:
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""


def test_rows_are_read_after_a_fork(tables):
    """They are made of a directory and addresses alone, and connect when they are used."""
    command = [sys.executable, "-c", FORK, str(tables.graph.path), *tables.addresses]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    expected = tables.rows(tables.graph, "features", "paper")
    assert done.stdout == 4 * expected.tobytes()


@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_a_downloaded_graph_has_splits_and_maps(tables, tmp_path, serve_partitions, topology):
    """Where topology is divided, so are the maps."""
    parts = partition_graph(tables.directory, tmp_path / "parts", 3, "random", 4, topology=topology)
    graph = download_graph(serve_partitions(parts.path, 3), tmp_path / "graph")
    assert np.array_equal(graph.split("train"), parts.split("train"))
    for node_type in graph.schema.node_types:
        for read in ("original_ids", "global_ids"):
            ids = getattr(graph, read)(node_type)
            assert np.array_equal(np.asarray(ids), np.asarray(getattr(parts, read)(node_type)))


LIES = [
    ("graph", lambda text: text[:-9], GraphError, "graph.json"),
    ("graph", lambda text: text.replace('"venue"', '"../../venue"'), GraphError, "venue"),
    ("graph", lambda text: text.replace('"train": 20', '"../train": 20'), GraphError, "train"),
    ("graph", lambda text: text.replace('"train": 20', '"train": 21'), ClusterError, "a range of"),
    ("graph", lambda text: text.replace('"count": 41', '"count": -1'), GraphError, "author"),
    ("partition", lambda text: "[]", GraphError, "partition.json"),
    ("partition", lambda text: text.replace('"paper"', '"x"'), GraphError, "partition.json"),
]


@pytest.mark.parametrize(("field", "change", "kind", "text"), LIES)
def test_a_server_that_lies_of_the_graph_is_told(
    tables, tmp_path, monkeypatch, field, change,
    kind, text,
):  # fmt: skip
    describe = FeatureClient.describe_graph

    def lie(client: FeatureClient) -> Any:
        described = describe(client)
        setattr(described, field, change(getattr(described, field)))
        return described

    monkeypatch.setattr(FeatureClient, "describe_graph", lie)
    with pytest.raises(kind, match=re.escape(text)):
        download_graph(tables.addresses, tmp_path / "in" / "here")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_servers_of_two_divisions_tell_no_graph(tables, tmp_path):
    other = Path(shutil.copytree(tables.graph.path, tmp_path / "other"))
    set_division(other / "server-1", "abcd")
    server = FeatureServer(Shard.open(other / "server-1"), "127.0.0.1:0")
    server.start()
    addresses = [tables.addresses[0], server.address, tables.addresses[2]]
    with pytest.raises(ClusterError, match=r"server 1 at .* serves the division abcd, expected"):
        download_graph(addresses, tmp_path / "graph")
    server.stop(1.0)


def test_a_server_that_does_not_answer_or_is_another_is_named(tables):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead_address = f"127.0.0.1:{unused.getsockname()[1]}"
        addresses = [tables.addresses[0], dead_address, tables.addresses[2]]
        rows = RemoteRows(tables.graph, addresses, 0.6)
        with pytest.raises(ServerLost, match=f"server 1 at {dead_address}"):
            rows.gather("features", "paper", np.arange(90))
        with pytest.raises(ServerLost, match=f"server 1 at {dead_address}"):
            rows.wait_until_serving(0.6)
        # The servers that are there go on answering.
        assert rows.gather("features", "paper", np.array([0])).shape == (1, 7)
        rows.close()
    rows = RemoteRows(tables.graph, tables.addresses[::-1], 5.0)
    with pytest.raises(ClusterError, match="server 0 at"):
        rows.gather("features", "paper", np.array([0]))
    rows.close()


def test_reads_of_one_operation_share_a_deadline(tables):
    """The reads together are too slow, though no single one is."""
    ids = np.arange(3)
    home = int(tables.graph.book.home("paper", ids)[0])
    with TcpProxy(tables.addresses[home], pause=0.3) as slow_proxy:
        addresses = [*tables.addresses]
        addresses[home] = slow_proxy.address
        rows = RemoteRows(tables.graph, addresses, 2.0)

        def read_often() -> None:
            for _ in range(12):
                rows.gather("features", "paper", ids)

        with pytest.raises(DeadlineExceeded, match="within 2 s"), rows.one_operation():
            read_often()
        # Single reads have a deadline each.
        read_often()
        rows.close()


# Rows that are rounded when they travel between servers, and the errors that this makes

FORMS: tuple[FeatureForm, ...] = ("float16", "bfloat16", "int8")
ALONE = Cluster(0, 1, 1, torch.device("cpu"), 1.0)


@pytest.fixture(params=FORMS)
def form(request) -> FeatureForm:
    return request.param


def test_float32_rows_are_rounded_and_no_others(tables, remote, form):
    ids, codec = np.array([3, 88, 3, 40, 41, 0]), CODECS[form]
    rounded, sent_bytes = RemoteRows(tables.graph, tables.addresses, 20.0, wire=form), []
    stored = tables.rows(tables.graph, "features", "paper")[ids]
    rows = rounded.gather("features", "paper", ids)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, codec.decode(codec.encode(stored)))
    assert not np.array_equal(rows, stored)
    features = [("features", name) for name in ("author", "journal", "series")]
    for kind, node_type in [*features, ("labels", "paper"), ("labels", "venue")]:
        stored = tables.rows(tables.graph, kind, node_type)
        rows = rounded.gather(kind, node_type, np.arange(len(stored)))
        np.testing.assert_array_equal(rows, stored)
    for source in (remote, rounded):
        source.count_into(traffic := Traffic())
        source.gather("features", "paper", np.arange(90))
        sent_bytes.append(traffic.take()["feature"])
    rounded.close()
    # The name of the form stands in each of three requests, with two bytes before it; the lengths
    # of what it makes longer or shorter may take a byte less each.
    saved_bytes = 90 * (CODECS["float32"].row_bytes(7) - codec.row_bytes(7))
    assert saved_bytes - 3 * (2 + len(form)) <= sent_bytes[0] - sent_bytes[1] <= saved_bytes + 6


def test_errors_are_those_of_the_rows(tables, form):
    rows = PartitionedRows(tables.graph, 1, None)
    errors = measure_wire_error(rows, ALONE, form)
    assert set(errors) == {"paper", "venue", "ghost"}
    local_rows = tables.rows(tables.graph, "features", "paper")[tables.local_ids("paper")]
    rounded = CODECS[form].decode(CODECS[form].encode(local_rows))
    errors_of_rows = np.abs(rounded - local_rows.astype(np.float64))
    assert errors["paper"].absolute == errors_of_rows.max()
    assert errors["paper"].relative == (errors_of_rows.max(1) / np.abs(local_rows).max(1)).max()
    assert errors["ghost"] == (0, 0)
    messages = tell_wire_error(errors, form)
    assert f"features of paper: approximate, rounded to {form} between servers" in messages[0]
    assert measure_wire_error(rows, ALONE, "stored") == {}


def test_requests_that_a_server_does_not_round_are_refused(tables, remote):
    client, ids = remote._client, {1: tables.local_ids("author")[:2]}
    all_rows = {1: slice(None)}
    with pytest.raises(BadRequest, match=r"form: expected one of float16, bfloat16, int8, got 'f'"):
        client.fetch_rows("features", "author", ids, np.zeros((2, 3), "f4"), all_rows, form="f")
    with pytest.raises(BadRequest, match="form: int8 rounds float32 rows; out has float16"):
        client.fetch_rows("features", "author", ids, np.zeros((2, 3), "f2"), all_rows, form="int8")


def test_numbers_beyond_float16_are_named(tables, tmp_path, serve_partitions):
    parts = Path(shutil.copytree(tables.graph.path, tmp_path / "parts"))
    np.load(parts / "server-1" / "features" / "paper.npy", mmap_mode="r+")[:] = 70_000
    graph = PartitionedGraph.open(parts)
    rows = RemoteRows(graph, serve_partitions(parts, 3), 20.0, wire="float16")
    with pytest.raises(ClusterError, match=r"what float16 can hold, such as 70000; expected"):
        rows.gather("features", "paper", tables.local_ids("paper")[:1])
    rows.close()
    local_rows = PartitionedRows(graph, 1, None)
    with pytest.raises(RequestError, match=r"cluster\.feature_wire: features of paper have num"):
        measure_wire_error(local_rows, ALONE, "float16")
