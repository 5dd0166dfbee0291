"""Estimated bytes equal those that real runs count, cause by cause."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from hopper.config import make_config
from hopper.engines import Request
from hopper.features import open_graph
from hopper.graph import GraphDirectory
from hopper.hetero.divide import divide_graph
from hopper.partition import partition_graph
from hopper.rehearsal.clock import Link, MessageCost
from hopper.rehearsal.estimate import estimate_engine
from tests.conftest import make_community_graph
from tests.engines.conftest import RANK_SCRIPT
from tests.engines.typed_cases import LEARNABLE, MODELS, WITH_FEATURES, make_graph

SERVERS = 2
EVERYWHERE = ("cooperative", "zero_hop", "hop")
LINK = Link(10**9, 1e-4, 1, MessageCost(1e-5, 0.0), MessageCost(1e-5, 0.0))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """A graph whose batches are so large that a few of them represent all."""
    return make_community_graph(tmp_path_factory.mktemp("graph") / "graph", nodes=1200, train=370)


def make_values(partitioned: Path, engine: str, ranks: int, **data: Any) -> dict[str, Any]:
    full = engine == "neutronstar"
    return {
        "data": {"partitioned": str(partitioned)},
        "model": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.3},
        "sampler": {"kind": "full"} if full else {"fanouts": [4, 3]},
        "train": {"engine": engine, "batch_size": 32, "epochs": 1, "evaluate_every": 0, **data},
        "hop": {"merge": "off"},
        "cluster": {"ranks_per_server": ranks},
    }


def estimate_bytes(values: dict[str, Any], most: int) -> dict[str, int]:
    config = make_config(values)
    request = Request(config, open_graph(config))
    estimate = estimate_engine(config.train.engine, request, LINK, 1.0, most)
    assert not estimate.refused
    assert estimate.bytes is not None
    return dict(estimate.bytes)


@pytest.mark.parametrize(
    ("topology", "ranks", "engines"),
    [
        ("replicated", 1, (*EVERYWHERE, "naive", "locality", "neutronstar")),
        # Of the others, the first case has the whole topology, the last one two ranks a server.
        ("replicated", 2, ("hop", "model_centric")),
        ("partitioned", 2, EVERYWHERE),
    ],
)
def test_estimated_bytes_equal_those_of_real_epochs(
    topology: Literal["replicated", "partitioned"],
    ranks: int,
    engines: tuple[str, ...],
    graph: GraphDirectory,
    run_ranks: Callable[..., list[Any]],
    serve_partitions: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    partitioned = tmp_path / "parts"
    partition_graph(graph, partitioned, SERVERS, "random", topology=topology)
    cases = []
    for name in engines:
        # By itself the engine would decide from measured times.
        options = {"engine_options": {"dependencies": "fetch"}} if name == "neutronstar" else {}
        cases.append(make_values(partitioned, name, ranks, run_dir=str(tmp_path / name), **options))
    servers = serve_partitions(partitioned, SERVERS)
    for case, measured in zip(cases, run_cases(cases, servers, run_ranks, tmp_path), strict=True):
        engine = case["train"]["engine"]
        assert estimate_bytes(case, 100) == measured, engine
        few_iterations = estimate_bytes(case, 3)
        for cause, nbytes in measured.items():
            assert few_iterations[cause] == pytest.approx(nbytes, rel=0.05), f"{engine}, {cause}"


def test_estimates_of_typed_graphs_learnable_rows_and_columns(
    run_ranks: Callable[..., list[Any]],
    serve_partitions: Callable[..., list[str]],
    graph: GraphDirectory,
    tmp_path: Path,
) -> None:
    typed = make_graph(tmp_path / "typed", WITH_FEATURES)
    partition_graph(typed, tmp_path / "by-node", SERVERS, "random")
    divide_graph(typed, tmp_path / "by-relation", SERVERS, "meta", layers=2)
    partition_graph(graph, tmp_path / "columns", SERVERS, "random", features="by-dimension")
    cases = []
    for folder, engine in (
        *(("by-node", "zero_hop"), ("by-node", "cooperative")),
        *(("by-relation", "raf"), ("columns", "p3")),
    ):
        case = make_values(tmp_path / folder, engine, 1, run_dir=str(tmp_path / engine))
        if folder != "columns":
            case["model"] = MODELS["rgcn"]
            case["learnable"] = LEARNABLE
            case["train"]["batch_size"] = 8
        cases.append(case)
    servers = [serve_partitions(tmp_path / folder, SERVERS) for folder in ("by-node", "columns")]
    addresses = {"by-node": servers[0], "columns": servers[1], "by-relation": []}
    measured = run_cases(cases, addresses, run_ranks, tmp_path)
    for case, sent_bytes in zip(cases, measured, strict=True):
        assert estimate_bytes(case, 100) == sent_bytes, case["train"]["engine"]


def run_cases(
    cases: list[dict[str, Any]],
    servers: list[str] | dict[str, list[str]],
    run_ranks: Callable[..., list[Any]],
    folder: Path,
) -> list[dict[str, int]]:
    """Train the cases on real ranks; returns the bytes by cause of each.

    Parameters
    ----------
    servers: their addresses, or the addresses by the name of a division's folder.
    """
    runs = []
    for case in cases:
        parts = Path(case["data"]["partitioned"]).name
        addresses = servers if isinstance(servers, list) else servers[parts]
        runs.append({"config": {**case, "cluster": {**case["cluster"], "servers": addresses}}})
    file = folder / "cases.json"
    file.write_text(json.dumps(runs))
    world = SERVERS * int(cases[0]["cluster"]["ranks_per_server"])
    first, *_ = run_ranks(RANK_SCRIPT, world, folder / "ranks", str(file))
    return [dict(result["bytes"]) for result in first]
