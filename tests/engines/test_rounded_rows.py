"""Rows and partial sums that are rounded between servers: fewer bytes, near the exact gradient."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopper.bench.parity import check_engine, read_recorded
from hopper.config import make_config
from hopper.engines.reference import Reference
from hopper.graph.directory import GraphDirectory
from hopper.partition import PartitionedGraph, partition_graph

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def parts(community_graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("partition") / "parts"
    partition_graph(community_graph, out, 2, "random")
    return out


def case(parts: Path, run_dir: Path, engine: str, model: str) -> dict[str, Any]:
    train = {"engine": engine, "batch_size": 16, "epochs": 1, "iterations_per_epoch": 2, "seed": 3}
    train |= {"record_gradients": [0, 1], "evaluate_every": 0, "run_dir": str(run_dir)}
    return {
        "data": {"partitioned": str(parts)},
        "model": {"name": model, "layers": 2, "hidden": 8, "heads": 2, "dropout": 0.3},
        "sampler": {"fanouts": [4, 3]},
        "train": train,
        "hop": {"merge": "off"},
    }


def distance(values: dict[str, Any]) -> float:
    """How far the first gradient is from the exact one."""
    config = make_config(values)
    recorded = read_recorded(Path(config.train.run_dir) / "gradients")
    reference = Reference(config, PartitionedGraph.open(config.data.partitioned), 2)
    parity = check_engine(config.train.engine, "float32", reference, recorded)
    return parity.gradients[0].overall


def test_rounding_on_the_wire_halves_bytes_and_stays_near(
    parts: Path, train_cases: TrainCases, tmp_path: Path
) -> None:
    # Eight times the dtype's relative rounding: several roundings add up on the way.
    limits = {"bfloat16": 8 * 2**-8, "float16": 8 * 2**-11}
    cases = [
        case(parts, tmp_path / wire, "cooperative", "gat") | {"cooperative": {"wire": wire}}
        for wire in ("exact", *limits)
    ]
    exact, *rounded = train_cases(cases, 2, tmp_path)
    for values, result in zip(cases[1:], rounded, strict=True):
        assert 1e-6 < distance(values) < limits[values["cooperative"]["wire"]]
        assert result["bytes"]["partial"] * 2 == exact["bytes"]["partial"]


def test_rows_rounded_between_servers_take_fewer_bytes_and_stay_near(
    parts: Path, train_cases: TrainCases, tmp_path: Path
) -> None:
    limits = {"int8": 0.1, "bfloat16": 0.05}
    cases = [
        case(parts, tmp_path / form, engine, "sage") | {"cluster": {"feature_wire": form}}
        for form, engine in (("stored", "hop"), ("int8", "hop"), ("bfloat16", "model_centric"))
    ]
    stored, *rounded = train_cases(cases, 2, tmp_path)
    assert rounded[0]["bytes"]["feature"] < 0.7 * stored["bytes"]["feature"]
    for values in cases[1:]:
        form = values["cluster"]["feature_wire"]
        assert 1e-6 < distance(values) < limits[form]
        summary = json.loads(Path(values["train"]["run_dir"], "summary.json").read_text())
        assert not summary["exact"]
        assert summary["feature_wire"]["form"] == form
        assert 0 < summary["feature_wire"]["error"]["item"]["relative"] < 2**-7
