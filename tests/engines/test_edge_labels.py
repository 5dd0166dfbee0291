"""Labels of edges: every engine that predicts them computes the gradient of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopper.config import make_config
from hopper.config.engines import BASELINES
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.engines.training_parts import check_training_parts
from hopper.engines.unused import describe_unused
from hopper.errors import ConfigError, GraphError, RequestError
from hopper.graph import GraphDirectory
from hopper.graph.schema import Labels
from hopper.graph.write import GraphWriter
from hopper.partition import PartitionedGraph, partition_graph
from hopper.tasks.edge_decoders import EdgeDecoder
from tests.graphs import RATES, RATINGS, WROTE, make_library

from .conftest import merged

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

MODELS: dict[str, dict[str, Any]] = {
    "rgcn": {"name": "rgcn", "layers": 2, "hidden": 8, "dropout": 0.2},
    "hgt": {"name": "hgt", "layers": 2, "hidden": 8, "heads": 2},
}


def library(out: Path, kind: str) -> GraphDirectory:
    """Write a library in which edges to books have labels.

    A label is a class, two values, or several of three names. Some edges have no class.
    """
    generator = np.random.default_rng(6)

    def labels(edges: int, classes: int) -> np.ndarray:
        if kind == "class":
            return generator.integers(-1, classes, edges)
        if kind == "float":
            return generator.normal(size=(edges, 2)).astype(np.float32)
        return generator.integers(0, 2, (edges, 3))

    of_edges = {RATES: labels(RATINGS, 4), WROTE: labels(90, 3)}
    return make_library(out, [RATES, WROTE], labels=of_edges)


def values_of(parts: Path, **sections: Any) -> dict[str, Any]:
    values = {"model": MODELS["rgcn"], "sampler": {"fanouts": [3, 2]}}
    return merged({"data": {"partitioned": str(parts)}}, values, sections)


def test_a_partition_keeps_all_edges_and_the_labels_of_splits(tmp_path: Path) -> None:
    graph = library(tmp_path / "graph", "class")
    assert graph.schema.predicted == "edge"
    assert graph.schema.target_labels == Labels("class", 4)
    stored = np.concatenate([graph.labels(relation) for relation in (RATES, WROTE)])
    for servers in (1, 3):
        parts = tmp_path / str(servers)
        partition_graph(graph, parts, servers, "random")
        partitioned = PartitionedGraph.open(parts)
        for relation, kind in graph.schema.relations.items():
            assert partitioned.topology(relation).indices.size == kind.count
        for split in ("train", "val", "test"):
            links = partitioned.links(split)
            assert links.labels is not None
            np.testing.assert_array_equal(links.labels, stored[links.ids])
            # Those without labels are in no split.
            assert links.count
            assert links.labels.min() >= 0


def test_labels_of_target_relations_have_to_agree(tmp_path: Path) -> None:
    graph = library(tmp_path / "graph", "class")
    labels = dict(graph.schema.labels) | {WROTE: Labels("float", 1)}
    broken = graph.schema.__class__(**vars(graph.schema) | {"labels": labels})
    with (
        pytest.raises(GraphError, match="target: expected edges of all target relations"),
        GraphWriter(tmp_path / "broken", broken),
    ):
        pass
    with pytest.raises(GraphError, match=r"labels of reader/rates/book: expected 3, one for each"):
        GraphDirectory.from_arrays(
            tmp_path / "short", {RATES: [[0, 1, 1], [0, 0, 1]]}, labels={RATES: [1, 0]}
        )


class Sum(EdgeDecoder):
    """Adds a linear layer of both rows."""

    def __init__(self, *, width: int, relations: int, outputs: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, outputs)

    def forward(
        self, heads: torch.Tensor, relations: torch.Tensor, tails: torch.Tensor
    ) -> torch.Tensor:
        """Return a row of outputs for each edge."""
        outputs: torch.Tensor = self.linear(heads + tails)
        return outputs


class OneForAll(Sum):
    """Mixes edges, which a decoder may not: one row is the mean over all of them."""

    def forward(
        self, heads: torch.Tensor, relations: torch.Tensor, tails: torch.Tensor
    ) -> torch.Tensor:
        """Return one row of outputs for all edges."""
        return super().forward(heads, relations, tails).mean(0)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> PartitionedGraph:
    folder = tmp_path_factory.mktemp("two")
    return partition_graph(library(folder / "graph", "class"), folder / "parts", 2, "random")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"train": {"engine": "raf"}}, "train.engine: "),
        (
            {"train": {"engine": BASELINES["neutronstar"]}},
            "train.engine: neutronstar knows no node types",
        ),
        ({"task": {"kind": "link"}}, "task.kind: the graph's target is reader/rates/book"),
        ({"task": {"decoder": "distmult"}}, "task.decoder: expected mlp, bilinear or"),
        ({"task": {"decoder": f"{__name__}:OneForAll"}}, f"task.decoder: {__name__}:OneForAll"),
        ({"train": {"metric": "mrr"}}, "train.metric: expected accuracy"),
    ],
)
def test_wrong_requests_are_refused(
    changes: dict[str, Any], expected: str, on_two: PartitionedGraph
) -> None:
    config, graph = make_config(values_of(on_two.path, **changes)), on_two

    def check() -> None:
        check_request(Request(config, graph))
        check_training_parts(config, graph.schema)

    with pytest.raises((RequestError, ConfigError)) as error:
        check()
    assert str(error.value).startswith(expected), str(error.value)


def test_a_plug_in_decoder_is_accepted_and_unused_options_are_reported(tmp_path: Path) -> None:
    partition_graph(library(tmp_path / "graph", "class"), tmp_path / "parts", 1)
    task = {"decoder": f"{__name__}:Sum", "num_negatives": 3}
    request = Request(
        make_config(values_of(tmp_path / "parts", task=task)),
        PartitionedGraph.open(tmp_path / "parts"),
    )
    check_request(request)
    check_training_parts(request.config, request.schema)
    assert describe_unused(request) == [
        "not used: task.num_negatives: labels of edges are predicted, not links"
    ]
