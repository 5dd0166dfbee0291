"""Estimated bytes equal those that real runs count, cause by cause."""

from typing import Any

import pytest

from hopper.config import make_config
from hopper.engines import Request
from hopper.features import open_graph
from hopper.rehearsal.clock import Link, MessageCost
from hopper.rehearsal.estimate import estimate_engine
from tests.engines.features import merged
from tests.engines.graphs import LEARNABLE, MODELS

LINK = Link(10**9, 1e-4, 1, MessageCost(1e-5, 0.0), MessageCost(1e-5, 0.0))
BASE: dict[str, Any] = {
    "model": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.3},
    "sampler": {"fanouts": [4, 3]},
    "train": {"batch_size": 32, "epochs": 1, "evaluate_every": 0},
    "hop": {"merge": "off"},
}
TYPED = {"model": MODELS["rgcn"], "learnable": LEARNABLE, "train": {"batch_size": 8}}


def estimate_bytes(values: dict[str, Any], most: int) -> dict[str, int]:
    config = make_config(values)
    request = Request(config, open_graph(config))
    estimate = estimate_engine(config.train.engine, request, LINK, 1.0, most)
    assert not estimate.refused
    assert estimate.bytes is not None
    return dict(estimate.bytes)


@pytest.mark.parametrize(
    ("graph", "way", "ranks", "engines"),
    [
        ("many items", "replicated", 1, ("cooperative", "zero_hop", "hop")),
        # Of the others, the first case has the whole topology, the last one two ranks a server.
        ("many items", "replicated", 2, ("hop", "model_centric")),
        ("many items", "partitioned", 2, ("cooperative", "zero_hop", "hop")),
        ("bare", "replicated", 1, ("cooperative", "zero_hop")),
        ("bare", "by relation", 1, ("raf",)),
    ],
)
def test_estimated_bytes_equal_those_of_real_epochs(
    graph, way, ranks, engines, parts_of, train_cases, tmp_path
):
    """Few batches of the untyped graph represent all."""
    parts, is_typed = parts_of(graph, way), graph == "bare"
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
