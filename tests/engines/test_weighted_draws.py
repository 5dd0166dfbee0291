"""Draws by weight and with replacement under every engine: the gradient of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pairwise import pairwise

from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.engines.unused import describe_unused
from hopper.errors import RequestError
from hopper.graph import GraphDirectory
from hopper.partition import PartitionedGraph, partition_graph
from tests.graphs import RATES, make_library, make_nodes

from .conftest import CheckEngines

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

SAMPLERS: dict[str, dict[str, Any]] = {
    "by weight": {"kind": "weighted"},
    "by weight, unbiased": {"kind": "weighted", "kind_options": {"unbiased": True}},
    "by weight, unbiased, again": {
        "kind": "weighted",
        "kind_options": {"unbiased": True, "replace": True},
    },
    "with replacement": {"kind": "replacement"},
}
MODELS: dict[str, dict[str, Any]] = {
    "sage": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.2},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 2},
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8},
    "rgcn": {"name": "rgcn", "layers": 2, "hidden": 8},
    "rgat": {"name": "rgat", "layers": 2, "hidden": 4, "heads": 2},
    "hgt": {"name": "hgt", "layers": 2, "hidden": 8, "heads": 2},
}
# (method, servers, ranks of each, topology)
DIVISIONS = [
    ("metis", 2, 1, "replicated"),
    ("random", 2, 2, "replicated"),
    ("random", 3, 1, "partitioned"),
]
# Engines that compute a layer in parts meet every way of drawing and every model of one type, on
# several ranks of a server in every third case.
OF_ONE_TYPE = [
    (DIVISIONS[number % 3 == 2], *case)
    for number, case in enumerate(
        pairwise(("cooperative", "naive", "p3"), SAMPLERS, ("sage", "gat", "gcn"))
    )
]
# The others meet every way of drawing with several types, below.
OF_ONE_TYPE += [
    (DIVISIONS[1], "model_centric", "by weight", "sage"),
    (DIVISIONS[1], "zero_hop in passes", "by weight, unbiased, again", "gcn"),
    (DIVISIONS[1], "hop, one step merged", "with replacement", "gat"),
]
# Of others' edges servers tell no probability, but to the engine that asks for none.
OF_ONE_TYPE += [
    (DIVISIONS[2], engine, sampler, model)
    for engine, sampler, model in (
        ("model_centric", "by weight", "sage"),
        ("zero_hop in passes", "with replacement", "gat"),
        ("cooperative", "by weight, unbiased", "gat"),
        ("cooperative", "by weight, unbiased, again", "gcn"),
        ("naive", "by weight", "gat"),
    )
]


# Whether the target is a link; every two of it, an engine, a way of drawing and a model meet.
OF_SEVERAL_TYPES = pairwise(
    (False, True),
    ("model_centric", "zero_hop in passes", "hop, one step merged", "cooperative"),
    SAMPLERS,
    ("rgcn", "rgat", "hgt"),
)


@pytest.fixture(scope="module")
def one_type(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    return make_nodes(tmp_path_factory.mktemp("weighted") / "graph", edge_weights=True)


def sections_of(engine: str, sampler: str, model: str) -> dict[str, Any]:
    return {"model": MODELS[model], "sampler": SAMPLERS[sampler]}


@pytest.mark.parametrize("division", DIVISIONS)
def test_one_type(
    division: tuple[str, int, int, str], one_type: GraphDirectory, check_engines: CheckEngines
) -> None:
    method, *world, topology = division
    cases = {tuple(case): sections_of(*case) for here, *case in OF_ONE_TYPE if here == division}
    check_engines(one_type, cases, *world, method=method, topology=topology, backend="pymetis")


@pytest.mark.parametrize("links", [False, True])
def test_several_types(links: bool, check_engines: CheckEngines, tmp_path: Path) -> None:
    target = RATES if links else "book"
    graph = make_library(tmp_path / "graph", target, edge_weights=True)
    cases = {tuple(case): sections_of(*case) for here, *case in OF_SEVERAL_TYPES if here == links}
    check_engines(graph, cases, 2)


def test_missing_weights_are_refused_and_unused_weights_are_reported(
    one_type: GraphDirectory, tmp_path: Path
) -> None:
    partition_graph(one_type, tmp_path / "parts", 1)
    graph = PartitionedGraph.open(tmp_path / "parts")
    data = {"data": {"partitioned": str(tmp_path / "parts")}, "model": MODELS["sage"]}
    request = Request(make_config(data), graph)
    assert describe_unused(request) == [
        'not used: weights of node/edge/node: only sampler.kind = "weighted" reads them'
    ]
    by_weight = make_config(data | {"sampler": SAMPLERS["by weight"]})
    assert describe_unused(Request(by_weight, graph)) == []
    GraphDirectory.from_arrays(
        tmp_path / "plain",
        [[0, 1], [1, 0]],
        features=[[1.0], [2.0]],
        labels=[0, 1],
        splits={"train": [0, 1]},
    )
    partition_graph(GraphDirectory.open(tmp_path / "plain"), tmp_path / "none", 1)
    data |= {"data": {"partitioned": str(tmp_path / "none")}, "sampler": SAMPLERS["by weight"]}
    with pytest.raises(RequestError, match=r"draws by weights of edges, and the model reads no"):
        check_request(Request(make_config(data), PartitionedGraph.open(tmp_path / "none")))
