"""Learnable rows that begin with given ones, and rows that stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from hopper.bench.parity import check_engine, read_recorded
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.engines.reference import Reference
from hopper.errors import RequestError
from hopper.hetero.divide import partition_by_relation
from hopper.hetero.learnable import first_rows
from hopper.partition import PartitionedGraph, partition_graph

from .typed_cases import COUNTS, LEARNABLE, MODELS, TRAIN, WITH_FEATURES, make_graph


def write_rows(folder: Path) -> np.ndarray:
    folder.mkdir()
    rows = np.random.default_rng(7).standard_normal((COUNTS["author"], 6)).astype(np.float32)
    np.save(folder / "author.npy", rows)
    return rows


def case(folder: Path, parts: str, engine: str, number: int, **learnable: Any) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(folder / parts)},
        "model": MODELS["rgat"],
        "sampler": {"fanouts": [3, 2]},
        "train": TRAIN
        | {"engine": engine, "run_dir": str(folder / f"run {number}"), "checkpoint_every": 100},
        "hop": {"merge": "off"},
        "learnable": LEARNABLE | {"initial": str(folder / "rows")} | learnable,
        "cluster": {"ranks_per_server": 1},
    }


def test_rows_begin_as_given_and_frozen_ones_stay(
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    graph = make_graph(tmp_path / "graph", WITH_FEATURES)
    partition_graph(graph, tmp_path / "by node", 2, "random")
    partition_by_relation(graph, tmp_path / "by relation", 2, layers=2)
    addresses = serve_partitions(tmp_path / "by node", 2)
    rows = write_rows(tmp_path / "rows")
    frozen = ["author", "field"]
    cases = [
        case(tmp_path, "by node", "zero_hop", 0),
        case(tmp_path, "by node", "zero_hop", 1, frozen=frozen),
        case(tmp_path, "by node", "cooperative", 2, frozen=["author"]),
        case(tmp_path, "by relation", "raf", 3, frozen=["author"]),
        case(tmp_path, "by relation", "raf", 4, frozen=["author"], tables="per_server_table"),
    ]
    for values in cases[:3]:
        values["cluster"]["servers"] = addresses
    results = train_cases(cases, 2, tmp_path)
    for values in cases:
        config = make_config(values)
        parts = PartitionedGraph.open(config.data.partitioned)
        recorded = read_recorded(Path(config.train.run_dir) / "gradients")
        parity = check_engine("rgat", "float64", Reference(config, parts, 2), recorded)
        assert parity.gradient_difference < 1e-10, parity
        tables = load_file(Path(config.train.run_dir) / "learnable-rank-0.safetensors")
        learned = set(COUNTS) - {*WITH_FEATURES, *config.learnable.frozen}
        checkpoint = next(Path(config.train.run_dir).glob("checkpoints/learnable-rank-0-*"))
        saved = {name.split(".")[1].split("@")[0] for name in load_file(checkpoint)}
        assert saved == learned
        for name in [table for table in tables if not table.endswith(".ids")]:
            node_type, ids = name.split("@")[0], tables[f"{name}.ids"]
            first = rows[ids] if node_type == "author" else first_rows(5, name, ids, 6)
            assert bool((tables[name] == first).all()) == (
                node_type not in learned or not ids.size
            ), name
    assert results[1]["bytes"]["gradient"] < results[0]["bytes"]["gradient"]
    assert results[2]["losses"] == pytest.approx(results[3]["losses"], rel=1e-9)


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    graph = make_graph(tmp_path / "graph", WITH_FEATURES)
    parts = partition_graph(graph, tmp_path / "parts", 1, "random")
    write_rows(tmp_path / "rows")

    def check_refused(message: str, **learnable: Any) -> None:
        config = make_config(case(tmp_path, "by node", "zero_hop", 0, **learnable))
        with pytest.raises(RequestError, match=message):
            check_request(Request(config, parts))

    check_refused(
        r"learnable.frozen: expected node types with learnable rows .* given paper",
        frozen=["paper"],
    )
    check_refused(
        r"learnable.initial: .*/nowhere has none of author.npy, field.npy",
        initial=str(tmp_path / "nowhere"),
    )
    check_refused(r"author.npy: expected floats \[60, 8\] .* given float32 \[60, 6\]", dim=8)
    np.save(tmp_path / "rows" / "author.npy", np.zeros((60, 6), np.int64))
    check_refused(r"expected floats \[60, 6\] .* given int64 \[60, 6\]")
    (tmp_path / "rows" / "author.npy").write_bytes(b"")
    check_refused("author.npy: not a readable .npy file")
    with (tmp_path / "rows" / "author.npy").open("wb") as file:
        np.savez(file, rows=np.zeros((60, 6), np.float32))
    check_refused("author.npy: expected one .npy array, given an archive of several")
