"""Rows that are rounded when they travel between servers, and the errors that this makes."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from cache_server.errors import BadRequest
from cache_server.feature_codec import CODECS, FeatureForm
from hopper.cluster.cluster import Cluster
from hopper.cluster.traffic import Traffic
from hopper.errors import ClusterError, RequestError
from hopper.features import PartitionedRows, RemoteRows
from hopper.features.wire_error import measure_wire_error, tell_wire_error
from hopper.partition import PartitionedGraph

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
