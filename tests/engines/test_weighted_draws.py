"""Draws by weight and with replacement under every engine: the gradient of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.engines.unused import describe_unused
from hopper.errors import RequestError
from hopper.graph import GraphDirectory
from hopper.partition import PartitionedGraph, partition_graph
from tests.graphs import make_nodes

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


@pytest.fixture(scope="module")
def one_type(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    return make_nodes(tmp_path_factory.mktemp("weighted") / "graph", edge_weights=True)


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
