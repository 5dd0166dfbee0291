"""The estimate of time: what it grows with, and when a caller gets it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.partition import partition_graph, time_estimate
from hopper.partition.memory import MemoryEstimate
from hopper.partition.time_estimate import Rates, estimate_seconds, probe_rates

RATES = Rates(5e7, 5e8)


def schema(nodes: int, edges: int) -> GraphSchema:
    return GraphSchema("g", {"n": NodeType(nodes)}, {Relation("n", "e", "n"): EdgeType(edges)}, "n")


def estimate(nodes: int, edges: int, method: str, disk: int = 0) -> float:
    seconds = estimate_seconds(schema(nodes, edges), method, disk, RATES)
    assert seconds is not None
    return seconds


@pytest.mark.parametrize("method", ["random", "stream", "metis"])
def test_the_estimate_grows_with_the_graph(method: str) -> None:
    base = estimate(10**6, 10**7, method)
    assert estimate(10**7, 10**7, method) > base
    assert estimate(10**6, 10**8, method) > base
    # Half a gigabyte a second, and a half more to sum it up.
    assert estimate(10**6, 10**7, method, 10**9) - base == pytest.approx(3)


def test_methods_differ_by_what_they_read() -> None:
    estimates = [estimate(10**6, 10**7, method) for method in ("random", "stream", "metis")]
    assert sorted(estimates) == estimates
    assert estimate_seconds(schema(10, 10), "package.module:Class", 0, RATES) is None


def test_the_estimate_is_reported_before_the_work_starts(
    library: GraphDirectory, tmp_path: Path
) -> None:
    estimates: list[MemoryEstimate] = []
    out = tmp_path / "new" / "out"
    partition_graph(
        library,
        out,
        2,
        "random",
        on_estimate=lambda memory_estimate, _: estimates.append(memory_estimate),
    )
    assert estimates[0].seconds is not None
    assert estimates[0].seconds > 1
    rates = probe_rates(tmp_path)
    assert rates.reads > 0
    assert rates.bytes > 0


def test_the_probe_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_estimate, "_WRITTEN", {})
    synced, sync = list[int](), os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(file), sync(file)))
    probe_rates(tmp_path)
    assert synced


def test_the_probe_ignores_a_full_disk() -> None:
    assert probe_rates(Path("/proc/none")).bytes > 0
