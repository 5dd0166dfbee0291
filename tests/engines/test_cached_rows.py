"""Runs with a cache, in host memory or where the rank trains: the same bits, fewer bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopper.graph.directory import GraphDirectory
from hopper.partition import partition_graph

ENGINES = ("model_centric", "hop", "zero_hop")


def read_lookups(spans: Path) -> list[list[int]]:
    """Read hits and misses of every epoch and type from a rank's log."""
    lines = map(json.loads, spans.read_text().splitlines())
    return [
        counts
        for line in lines
        if line.get("event") == "lookups"
        for counts in line["hits_and_misses"].values()
    ]


def case(
    folder: Path,
    addresses: list[str],
    engine: str,
    policy: str,
    model: dict[str, Any],
    **train: Any,
) -> dict[str, Any]:
    """Configure a run over ``folder/parts`` in ``folder/engine-policy``."""
    run_dir = str(folder / f"{engine}-{policy}")
    return {
        "data": {"partitioned": str(folder / "parts")},
        "model": model,
        "sampler": {"fanouts": [4, 3]},
        "train": {"engine": engine, "batch_size": 16, "epochs": 2, "run_dir": run_dir} | train,
        "hop": {"merge": "off"},
        "cache": {"policy": policy, "size": "20%"},
        "cluster": {"servers": addresses, "ranks_per_server": 1},
    }


def test_a_cache_changes_traffic_alone(
    community_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    partition_graph(community_graph, tmp_path / "parts", 2, "random")
    addresses = serve_partitions(tmp_path / "parts", 2)
    names = [
        *((engine, "none") for engine in ENGINES),
        *(("model_centric", "lru"), ("model_centric", "benefit")),
        *(("hop", "lru"), ("hop", "hotness+penalty")),
        *(("zero_hop", "hotness+penalty"), ("zero_hop", "benefit")),
    ]
    sage = {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.3}
    cases = [case(tmp_path, addresses, *name, sage) for name in names]
    results = dict(zip(names, train_cases(cases, 2, tmp_path), strict=True))
    for engine in ENGINES:
        plain = results[engine, "none"]
        assert plain["lookups"] == {}
        looked_for = set()
        for policy in (
            policy for of_engine, policy in names if of_engine == engine and policy != "none"
        ):
            result = results[engine, policy]
            assert (result["losses"], result["val"]) == (plain["losses"], plain["val"])
            ((hits, misses),) = result["lookups"].values()
            assert hits > 0
            assert misses > 0
            looked_for.add(hits + misses)
            rows, plain_rows = result["rows"], plain["rows"]
            assert (rows["local"], rows["remote"]) == (plain_rows["local"], plain_rows["remote"])
            assert rows["remote_unique"] + rows["cached"] == plain_rows["remote_unique"]
            assert rows["cached"] == hits
            assert result["bytes"]["feature"] < plain["bytes"]["feature"]
            spans = tmp_path / f"{engine}-{policy}" / "spans"
            last = [read_lookups(spans / f"rank-{rank}.jsonl")[-1] for rank in range(2)]
            assert [sum(counts) for counts in zip(*last, strict=True)] == [hits, misses]
        assert len(looked_for) == 1


def test_a_cache_on_the_device_changes_traffic_alone(
    community_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    """Rows of a rank's own server are cached too, and every row is looked up."""
    partition_graph(community_graph, tmp_path / "parts", 2, "random")
    addresses = serve_partitions(tmp_path / "parts", 2)
    names = [
        *((engine, "none") for engine in (*ENGINES, "locality", "cooperative")),
        *(("model_centric", "lru"), ("model_centric", "benefit")),
        *(("hop", "hotness+penalty"), ("zero_hop", "benefit")),
        *(("locality", "lru"), ("locality", "hotness+penalty"), ("cooperative", "lru")),
    ]
    gat = {"name": "gat", "layers": 2, "hidden": 8, "dropout": 0.3}
    cases = [case(tmp_path, addresses, *name, gat, micro_batch=5) for name in names]
    for values in cases:
        values["cache"]["memory"] = "device"
    results = dict(zip(names, train_cases(cases, 2, tmp_path), strict=True))
    for engine, policy in names:
        result, plain = results[engine, policy], results[engine, "none"]
        # The same rows, multiplied in other blocks.
        assert result["losses"] == pytest.approx(plain["losses"], rel=1e-5)
        assert result["val"] == plain["val"]
        if policy == "none":
            continue
        ((hits, misses),) = result["lookups"].values()
        rows, plain_rows = result["rows"], plain["rows"]
        assert hits > 0
        assert misses == rows["local"] + rows["remote"]
        assert hits + misses == plain_rows["local"] + plain_rows["remote"]
        assert rows["local"] < plain_rows["local"]
        if engine != "cooperative" and policy != "lru":
            assert result["bytes"]["feature"] < plain["bytes"]["feature"]
            assert rows["remote_unique"] < plain_rows["remote_unique"]
