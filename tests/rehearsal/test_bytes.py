"""Estimated bytes equal those that real runs count, cause by cause."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hopper.config import make_config
from hopper.engines import Request
from hopper.features import open_graph
from hopper.hetero.divide import divide_graph
from hopper.partition import partition_graph
from hopper.rehearsal.clock import Link, MessageCost
from hopper.rehearsal.estimate import estimate_engine
from tests.conftest import make_community_graph
from tests.engines.features import merged
from tests.engines.graphs import LEARNABLE, MODELS, WITH_FEATURES, make_graph

LINK = Link(10**9, 1e-4, 1, MessageCost(1e-5, 0.0), MessageCost(1e-5, 0.0))
BASE: dict[str, Any] = {
    "model": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.3},
    "sampler": {"fanouts": [4, 3]},
    "train": {"batch_size": 32, "epochs": 1, "evaluate_every": 0},
    "hop": {"merge": "off"},
}
TYPED = {"model": MODELS["rgcn"], "learnable": LEARNABLE, "train": {"batch_size": 8}}


@pytest.fixture(scope="module")
def divide(tmp_path_factory) -> Callable[[str], Path]:
    """Divide a graph over two servers. Few batches of the untyped one represent all."""
    folder = tmp_path_factory.mktemp("graphs")
    graph = make_community_graph(folder / "graph", nodes=1200, train=370)
    typed = make_graph(folder / "typed", WITH_FEATURES)

    @cache
    def divide(division: str) -> Path:
        parts = folder / division
        if division == "by relation":
            divide_graph(typed, parts, 2, "meta", layers=2)
        elif division == "by node":
            partition_graph(typed, parts, 2, "random")
        else:
            partition_graph(graph, parts, 2, "random", topology=division)  # type: ignore[arg-type]
        return parts

    return divide


def estimate_bytes(values: dict[str, Any], most: int) -> dict[str, int]:
    config = make_config(values)
    request = Request(config, open_graph(config))
    estimate = estimate_engine(config.train.engine, request, LINK, 1.0, most)
    assert not estimate.refused
    assert estimate.bytes is not None
    return dict(estimate.bytes)


@pytest.mark.parametrize(
    ("division", "ranks", "engines"),
    [
        ("replicated", 1, ("cooperative", "zero_hop", "hop")),
        # Of the others, the first case has the whole topology, the last one two ranks a server.
        ("replicated", 2, ("hop", "model_centric")),
        ("partitioned", 2, ("cooperative", "zero_hop", "hop")),
        ("by node", 1, ("cooperative", "zero_hop")),
        ("by relation", 1, ("raf",)),
    ],
)
def test_estimated_bytes_equal_those_of_real_epochs(
    division, ranks, engines, divide, train_cases, tmp_path
):
    parts, is_typed = divide(division), division.startswith("by")
    cases = [
        merged(
            BASE,
            TYPED if is_typed else {},
            {"data": {"partitioned": str(parts)}, "cluster": {"ranks_per_server": ranks}},
            {"train": {"engine": engine, "run_dir": str(tmp_path / engine)}},
        )
        for engine in engines
    ]
    trained = train_cases(cases, 2 * ranks, tmp_path / "ranks")
    for engine, case, result in zip(engines, cases, trained, strict=True):
        assert estimate_bytes(case, 100) == result["bytes"], engine
        if not is_typed:
            few_iterations = estimate_bytes(case, 3)
            for cause, nbytes in result["bytes"].items():
                assert few_iterations[cause] == pytest.approx(nbytes, rel=0.05), (engine, cause)
