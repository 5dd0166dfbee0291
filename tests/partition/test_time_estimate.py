"""The estimate of time: what it grows with, and where it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.partition import partition_graph
from hopper.partition.memory import MemoryEstimate
from hopper.partition.time_estimate import Rates, estimate_seconds, probe_rates

RATES = Rates(5e7, 5e8)


def schema(nodes: int, edges: int) -> GraphSchema:
    return GraphSchema("g", {"n": NodeType(nodes)}, {Relation("n", "e", "n"): EdgeType(edges)}, "n")


def seconds(nodes: int, edges: int, method: str, disk: int = 0) -> float:
    found = estimate_seconds(schema(nodes, edges), method, disk, RATES)
    assert found is not None
    return found


@pytest.mark.parametrize("method", ["random", "stream", "metis"])
def test_it_grows_with_what_there_is(method: str) -> None:
    base = seconds(10**6, 10**7, method)
    assert seconds(10**7, 10**7, method) > base
    assert seconds(10**6, 10**8, method) > base
    # Half a gigabyte a second, and a half more to sum it up.
    assert seconds(10**6, 10**7, method, 10**9) - base == pytest.approx(3)


def test_methods_differ_by_what_they_read() -> None:
    found = [seconds(10**6, 10**7, method) for method in ("random", "stream", "metis")]
    assert sorted(found) == found
    assert estimate_seconds(schema(10, 10), "package.module:Class", 0, RATES) is None


def test_it_is_told_before_the_work_starts(library: GraphDirectory, tmp_path: Path) -> None:
    told: list[MemoryEstimate] = []
    out = tmp_path / "new" / "out"
    partition_graph(library, out, 2, "random", on_estimate=lambda each, _: told.append(each))
    assert told[0].seconds is not None
    assert told[0].seconds > 1
    rates = probe_rates(tmp_path)
    assert rates.reads > 0
    assert rates.bytes > 0


def test_a_disk_without_room_is_no_concern_of_the_probe() -> None:
    assert probe_rates(Path("/proc/none")).bytes > 0
