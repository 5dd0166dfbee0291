"""Bytes that are foretold are those that real runs count, cause by cause."""

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
from hopper.rehearsal.estimate import Machine, estimate_engine
from hopper.rehearsal.link import Link, MessageCost
from hopper.rehearsal.world import World
from tests.conftest import make_community_graph
from tests.engines.conftest import RANK_SCRIPT
from tests.engines.typed_cases import LEARNABLE, MODELS, WITH_FEATURES, make_graph

SERVERS = 2
EVERYWHERE = ("cooperative", "zero_hop", "hop")
LINK = Link(10**9, 1e-4, 1, MessageCost(1e-5, 0.0), MessageCost(1e-5, 0.0))
MACHINE = Machine(1, 0.0, 1)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """Batches of it are large enough for a few to tell of all."""
    return make_community_graph(tmp_path_factory.mktemp("graph") / "graph", nodes=1200, train=370)


def values_of(partitioned: Path, engine: str, ranks: int, **data: Any) -> dict[str, Any]:
    full = engine == "neutronstar"
    return {
        "data": {"partitioned": str(partitioned)},
        "model": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.3},
        "sampler": {"kind": "full"} if full else {"fanouts": [4, 3]},
        "train": {"engine": engine, "batch_size": 32, "epochs": 1, "evaluate_every": 0, **data},
        "hop": {"merge": "off"},
        "cluster": {"ranks_per_server": ranks},
    }


def estimated(values: dict[str, Any], most: int) -> dict[str, int]:
    config = make_config(values)
    request = Request(config, open_graph(config))
    world = World(request, LINK, MACHINE.pace)
    found = estimate_engine(config.train.engine, request, world, MACHINE, most)
    assert not found.refused
    assert found.bytes is not None
    return dict(found.bytes)


@pytest.mark.parametrize(
    ("topology", "ranks", "engines"),
    [
        ("replicated", 1, (*EVERYWHERE, "naive", "locality", "neutronstar")),
        # Of the others, the first case has the whole topology, the last one two ranks a server.
        ("replicated", 2, ("hop", "model_centric")),
        ("partitioned", 2, EVERYWHERE),
    ],
)
def test_an_epoch_sends_what_was_foretold(
    topology: Literal["replicated", "partitioned"],
    ranks: int,
    engines: tuple[str, ...],
    graph: GraphDirectory,
    run_ranks: Callable[..., list[Any]],
    serve_partitions: Callable[..., list[str]],
    tmp_path: Path,
) -> None:
    divided = tmp_path / "parts"
    partition_graph(graph, divided, SERVERS, "random", topology=topology)
    cases = []
    for name in engines:
        # What the engine decides by itself, it decides by what it measures.
        options = {"engine_options": {"dependencies": "fetch"}} if name == "neutronstar" else {}
        cases.append(values_of(divided, name, ranks, run_dir=str(tmp_path / name), **options))
    servers = serve_partitions(divided, SERVERS)
    for case, sent in zip(cases, sent_by(cases, servers, run_ranks, tmp_path), strict=True):
        engine = case["train"]["engine"]
        assert estimated(case, 100) == sent, engine
        few = estimated(case, 3)
        for cause, nbytes in sent.items():
            assert few[cause] == pytest.approx(nbytes, rel=0.05), f"{engine}, {cause}"


def test_typed_graphs_with_learnable_rows_and_columns(
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
        case = values_of(tmp_path / folder, engine, 1, run_dir=str(tmp_path / engine))
        if folder != "columns":
            case["model"] = MODELS["rgcn"]
            case["learnable"] = LEARNABLE
            case["train"]["batch_size"] = 8
        cases.append(case)
    servers = [serve_partitions(tmp_path / each, SERVERS) for each in ("by-node", "columns")]
    addresses = {"by-node": servers[0], "columns": servers[1], "by-relation": []}
    measured = sent_by(cases, addresses, run_ranks, tmp_path)
    for case, sent in zip(cases, measured, strict=True):
        assert estimated(case, 100) == sent, case["train"]["engine"]


def sent_by(
    cases: list[dict[str, Any]],
    servers: list[str] | dict[str, list[str]],
    run_ranks: Callable[..., list[Any]],
    folder: Path,
) -> list[dict[str, int]]:
    """Bytes by cause of real runs.

    Parameters
    ----------
    servers: addresses; of several divisions by the names of their folders.
    """
    runs = []
    for case in cases:
        parts = Path(case["data"]["partitioned"]).name
        own = servers if isinstance(servers, list) else servers[parts]
        runs.append({"config": {**case, "cluster": {**case["cluster"], "servers": own}}})
    file = folder / "cases.json"
    file.write_text(json.dumps(runs))
    world = SERVERS * int(cases[0]["cluster"]["ranks_per_server"])
    first, *_ = run_ranks(RANK_SCRIPT, world, folder / "ranks", str(file))
    return [dict(each["bytes"]) for each in first]
