"""What each source does besides: what it refuses, what it counts, what crosses the network."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hopper.errors import ClusterError, ConfigError, DeadlineExceeded, GraphError, ServerLost
from hopper.features import (
    LocalRows,
    Lookups,
    PartitionedRows,
    PregatheredRows,
    RemoteRows,
    RowCounts,
)
from hopper.hetero.row_cache import RecentRows, RowCache
from hopper.traffic import CAUSES, Traffic
from tests.tcp_proxy import TcpProxy

SERVER = 1


class Meter:
    """A traffic counter and the remote rows that write to it."""

    def __init__(self, tables: Any) -> None:
        self.traffic = Traffic()
        self.rows = RemoteRows(tables.graph, tables.addresses, 20.0)
        self.rows.count_into(self.traffic)

    def feature_bytes(self) -> int:
        """Since the last call; nothing may stand under another cause."""
        taken = self.traffic.take()
        assert set(taken) == set(CAUSES)
        assert sum(taken.values()) == taken["feature"]
        return taken["feature"]


@pytest.fixture
def meter(tables: Any) -> Iterator[Meter]:
    meter = Meter(tables)
    meter.rows.wait_until_serving(20.0)
    meter.feature_bytes()
    yield meter
    meter.rows.close()


@pytest.fixture
def rows(tables: Any, meter: Meter) -> PartitionedRows:
    return PartitionedRows(tables.graph, SERVER, meter.rows, meter.traffic)


def test_local_rows_of_another_server(tables: Any) -> None:
    elsewhere = int(tables.graph.book.offsets["paper"][SERVER + 1])
    local = LocalRows(tables.graph, SERVER)
    message = f"features/paper: node {elsewhere} is not stored on server {SERVER}"
    with pytest.raises(GraphError, match=message):
        local.gather("features", "paper", np.array([elsewhere]))


def test_remote_rows_are_counted(tables: Any, meter: Meter) -> None:
    """At least the rows themselves, and little more once there are many (invariant 3)."""
    ids = np.tile(np.arange(90), 50)
    payload = tables.rows(tables.graph, "features", "paper")[ids].nbytes
    meter.rows.gather("features", "paper", ids)
    counted = meter.feature_bytes()
    assert payload + ids.nbytes // 4 < counted < 1.1 * (payload + ids.nbytes)


def test_own_rows_cost_nothing(tables: Any, rows: PartitionedRows, meter: Meter) -> None:
    own = tables.here("paper")
    rows.gather("features", "paper", own)
    rows.gather("labels", "paper", own)
    assert meter.feature_bytes() == 0
    assert rows.take_rows() == RowCounts(local=own.size)
    rows.gather("features", "paper", np.arange(90))
    assert meter.feature_bytes() > (90 - own.size) * 7 * 4


def test_rows_are_counted(tables: Any, rows: PartitionedRows) -> None:
    """Features only; per request, repeats included; taking starts from zero again."""
    own = tables.here("paper").size
    rows.gather("features", "paper", np.arange(90))
    rows.gather("features", "paper", np.arange(90))
    rows.gather("labels", "paper", np.arange(90))
    away = 90 - own
    assert rows.take_rows() == RowCounts(local=2 * own, remote=2 * away, remote_unique=2 * away)
    assert rows.take_rows() == RowCounts()


def test_pregathered_rows_cross_once(tables: Any, rows: PartitionedRows, meter: Meter) -> None:
    """Groups overlap; each remote row is fetched once, and counted remotely for every group."""
    groups = [np.arange(0, 60), np.arange(30, 90), np.array([89, 0, 0])]
    away = [ids[~rows.is_local("paper", ids)] for ids in groups]
    needed = np.unique(np.concatenate(away))
    pregathered = PregatheredRows(rows, {"paper": groups})
    assert needed.size * 7 * 4 < meter.feature_bytes()
    expected = tables.rows(tables.graph, "features", "paper")
    for ids in groups:
        assert np.array_equal(pregathered.gather("features", "paper", ids), expected[ids])
    assert meter.feature_bytes() == 0
    counts = rows.take_rows()
    assert counts.remote_unique == needed.size
    assert counts.remote == sum(ids.size for ids in away)
    assert counts.local == sum(ids.size for ids in groups) - counts.remote


def test_kept_rows_are_not_fetched(tables: Any, rows: PartitionedRows, meter: Meter) -> None:
    """Found and fetched rows are told apart, by type, pre-gathered or not; labels are not kept."""
    everyone, own = np.arange(90), tables.here("paper")
    away = np.setdiff1d(everyone, own)
    held = RowCache(90, 20, 7, "float32")
    held.put(away[:20], meter.rows.gather("features", "paper", away[:20]))
    expected = tables.rows(tables.graph, "features", "paper")
    meter.feature_bytes()
    rows.keep({"paper": held, "author": RowCache(41, 0, 3, "float16")})
    assert np.array_equal(rows.gather("features", "paper", away[:20]), expected[away[:20]])
    assert meter.feature_bytes() == 0
    assert np.array_equal(rows.gather("features", "paper", everyone), expected)
    assert meter.feature_bytes() < (away.size - 20) * 7 * 4 * 1.5 + 1000
    counts = rows.take_rows()
    assert counts == RowCounts(
        local=own.size,
        remote=20 + away.size,
        remote_unique=away.size - 20,
        cached=40,
        lookups={"author": Lookups(), "paper": Lookups(40, away.size - 20)},
    )
    assert counts.cached == 40
    rows.gather("labels", "paper", everyone)
    assert rows.take_rows().cached == 0
    pregathered = PregatheredRows(rows, {"paper": [everyone, away[:30]]})
    assert np.array_equal(pregathered.gather("features", "paper", away), expected[away])
    taken = rows.take_rows()
    assert (taken.cached, taken.remote_unique) == (20, away.size - 20)


def test_rows_asked_for_last_are_kept(tables: Any, rows: PartitionedRows, meter: Meter) -> None:
    away = np.setdiff1d(np.arange(90), tables.here("paper"))
    rows.keep({"paper": RecentRows(90, 10, 7, "float32")})
    for asked, hits in ((away[:10], 0), (away[:10], 10), (away[5:15], 5), (away[5:15], 10)):
        rows.gather("features", "paper", asked)
        assert rows.take_rows().lookups["paper"] == Lookups(hits, 10 - hits)


def test_pregathering_asks_for_no_own_rows(
    tables: Any, rows: PartitionedRows, meter: Meter
) -> None:
    for requests in ([], [np.empty(0, np.int64)], [tables.here("paper")] * 2):
        pregathered = PregatheredRows(rows, {"paper": requests})
        assert meter.feature_bytes() == 0
        assert pregathered.gather("features", "paper", tables.here("paper")).shape[1] == 7


@pytest.mark.parametrize("asked", [[], [0]])
def test_a_row_that_was_not_pregathered(
    tables: Any, rows: PartitionedRows, asked: list[int]
) -> None:
    """``asked`` lies on server 0: with nothing held and with something held."""
    pregathered = PregatheredRows(rows, {"paper": [np.array(asked, np.int64)]})
    missing = int(tables.graph.book.offsets["paper"][SERVER + 1])
    ids = np.array([*asked, tables.here("paper")[0], missing])
    with pytest.raises(GraphError, match=f"features/paper: node {missing} was not pre-gathered"):
        pregathered.gather("features", "paper", ids)


def test_a_remote_row_without_remote_servers(tables: Any) -> None:
    rows = PartitionedRows(tables.graph, SERVER, None)
    message = "node 0 is not stored on the only server"
    with pytest.raises(GraphError, match=message):
        rows.gather("features", "paper", np.array([0]))
    with pytest.raises(GraphError, match=message):
        PregatheredRows(rows, {"paper": [np.array([0])]})


def test_number_of_addresses(tables: Any) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.servers: expected 3 addresses.*got 2"):
        RemoteRows(tables.graph, tables.addresses[:2], 1.0)


def test_a_server_that_is_not_there(tables: Any) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{unused.getsockname()[1]}"
        addresses = [tables.addresses[0], nobody, tables.addresses[2]]
        rows = RemoteRows(tables.graph, addresses, 0.6)
        try:
            with pytest.raises(ServerLost, match=f"server 1 at {nobody}"):
                rows.gather("features", "paper", np.arange(90))
            with pytest.raises(ServerLost, match=f"server 1 at {nobody}"):
                rows.wait_until_serving(0.6)
            # The servers that are there go on answering.
            assert rows.gather("features", "paper", np.array([0])).shape == (1, 7)
        finally:
            rows.close()


def test_a_server_of_another_graph(tables: Any) -> None:
    """Addresses in the wrong order: server 0 is asked for rows of server 1, and refuses."""
    rows = RemoteRows(tables.graph, tables.addresses[::-1], 5.0)
    try:
        with pytest.raises(ClusterError, match="server 0 at"):
            rows.gather("features", "paper", np.array([0]))
    finally:
        rows.close()


def test_reads_of_one_operation_share_a_deadline(tables: Any) -> None:
    """None of them is slow by itself."""
    ids = np.arange(3)
    home = int(tables.graph.book.home("paper", ids)[0])
    with TcpProxy(tables.addresses[home], pause=0.3) as slow:
        addresses = [*tables.addresses]
        addresses[home] = slow.address
        rows = RemoteRows(tables.graph, addresses, 2.0)
        begun = time.monotonic()

        def read_often() -> None:
            with rows.one_operation():
                for _ in range(40):
                    rows.gather("features", "paper", ids)

        with pytest.raises(DeadlineExceeded, match="within 2 s"):
            read_often()
        assert time.monotonic() - begun < 10.0
        # By themselves they may take as long again.
        for _ in range(8):
            rows.gather("features", "paper", ids)
        assert time.monotonic() - begun > 3.0
        rows.close()
