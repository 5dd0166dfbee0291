"""Engines that divide the first layer: the gradient of one process, from columns that lie on
several servers (p3), and from models that travel to the rows (naive).

Every kind of case meets both engines in a world of several ranks, not all of them in every world.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.baselines.split_layer import split_layer
from hopper.config import make_config
from hopper.config.engines import BASELINES
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.errors import RequestError
from hopper.features import LocalRows, PartitionedRows, RemoteRows
from hopper.graph.block import Block, Nodes
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import Relation
from hopper.models import GNN, Layer
from hopper.models.gat import GATLayer
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.layout import Columns, divide_columns

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8, "dropout": 0.3},
    "sage": {"name": "sage", "layers": 3, "hidden": 8, "dropout": 0.3},
    # Wider than the features, so that these are added up before they are multiplied.
    "wide gcn": {"name": "gcn", "layers": 2, "hidden": 12, "dropout": 0.3},
    "wide sage": {"name": "sage", "layers": 2, "hidden": 12, "dropout": 0.3},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 3, "dropout": 0.3},
    "deepgcn": {"name": "deepgcn", "layers": 3, "hidden": 8, "dropout": 0.3},
    "film": {"name": "film", "layers": 2, "hidden": 8, "dropout": 0.3},
    "pool": {"name": "sage", "aggregator": "pool", "layers": 2, "hidden": 8, "dropout": 0.3},
    "lstm": {"name": "sage", "aggregator": "lstm", "layers": 2, "hidden": 8, "dropout": 0.3},
    "one layer": {"name": "sage", "layers": 1, "hidden": 8},
    "one deep layer": {"name": "deepgcn", "layers": 1, "hidden": 8},
}
FEATURES = {"p3": "by-dimension", "naive": "by-node", "model_centric": "by-node"}


def case_config(
    model: str, partitioned: Path, run_dir: Path, engine: str = "p3", **train: Any
) -> dict[str, Any]:
    """Configure a run that records two iterations of a model."""
    return {
        "data": {"partitioned": str(partitioned)},
        "model": MODELS[model],
        "sampler": {"fanouts": [4, 3, 2][: MODELS[model]["layers"]]},
        "train": {
            "engine": BASELINES.get(engine, engine),
            "batch_size": 16,
            "epochs": 1,
            "learning_rate": 0.01,
            "weight_decay": 0.001,
            "clip_norm": 1.0,
            "dtype": "float64",
            "record_gradients": [0, 1],
            "iterations_per_epoch": 2,
            "run_dir": str(run_dir),
            "seed": 3,
        }
        | train,
    }


@pytest.fixture(scope="module")
def divided(
    community_graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, str], Path]:
    """Divide the community graph over servers, its features by node or by dimension."""
    folder, paths = tmp_path_factory.mktemp("divided"), {}

    def divide(servers: int, features: Any) -> Path:
        key = servers, features
        if key not in paths:
            paths[key] = folder / f"{features}-{servers}"
            partition_graph(community_graph, paths[key], servers, "random", features=features)
        return paths[key]

    return divide


def test_a_server_stores_its_columns_of_all_nodes(
    community_graph: GraphDirectory,
    divided: Callable[[int, str], Path],
    serve_partitions: Callable[[Path, int], list[str]],
) -> None:
    graph = PartitionedGraph.open(divided(3, "by-dimension"))
    by_node = PartitionedGraph.open(divided(3, "by-node"))
    assert [columns.width for columns in divide_columns(10, 3)] == [3, 3, 4]
    assert np.array_equal(graph.original_ids("item"), by_node.original_ids("item"))
    features = np.asarray(community_graph.features("item"))[graph.original_ids("item")]
    for server, (first, stop) in enumerate(divide_columns(10, 3)):
        assert np.array_equal(graph.features("item", server), features[:, first:stop])
        assert np.array_equal(
            graph.labels("item", server),
            np.asarray(community_graph.labels("item"))[graph.original_ids("item")],
        )
    remote = RemoteRows(graph, serve_partitions(graph.path, 3), 60)
    try:
        rows, ids = PartitionedRows(graph, 1, remote), np.array([5, 250, 17])
        assert np.array_equal(rows.whole("item", ids).to_tensor().numpy(), features[ids])
        assert np.array_equal(
            LocalRows(graph, 1).gather("features", "item", ids), features[ids, 3:6]
        )
    finally:
        remote.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache": {"policy": "benefit", "memory": "device"}}, r"^cache.policy: under {} "),
        ({"learnable": {"types": ["item"]}}, r"^learnable.types: {} divides the first layer"),
        (
            {"model": {"name": "rgcn"}},
            r"^train.engine: {} divides the first layer of models of one",
        ),
        ({"train": {"micro_batch": 3}}, r"^train.micro_batch: {} trains a mini-batch in one pass"),
        ({"model": {"name": "own_stacks:Normed"}}, r"^train.engine: {} .* Normed prepares them"),
        ({"model": {"name": "own_stacks:Other"}}, r"^train.engine: {} .* says anew how it reads"),
    ],
)
@pytest.mark.parametrize("engine", ["p3", "naive"])
def test_what_they_cannot_train_is_refused(
    engine: str,
    change: dict[str, Any],
    message: str,
    divided: Callable[[int, str], Path],
    tmp_path: Path,
) -> None:
    path = divided(2, FEATURES[engine])
    values = case_config("sage", path, tmp_path / "run", engine)
    for section, keys in change.items():
        values[section] = values.get(section, {}) | keys
    config = make_config(values)
    with pytest.raises(RequestError, match=message.format(engine)):
        check_request(Request(config, PartitionedGraph.open(path)))


def test_whole_rows_and_columns_do_not_mix(
    divided: Callable[[int, str], Path], tmp_path: Path
) -> None:
    for engine, features, message in (
        ("zero_hop", "by-dimension", r"^train.engine: the features of .* engine of your own"),
        ("auto", "by-dimension", r"^train.engine: the features of .* given auto$"),
        ("p3", "by-node", r"^train.engine: .* was divided by node .* expected cooperative, "),
    ):
        path = divided(2, features)
        config = make_config(case_config("sage", path, tmp_path / "run", engine))
        with pytest.raises(RequestError, match=message):
            check_request(Request(config, PartitionedGraph.open(path)))


class Plain(GNN):
    """A model whose first layer does not say which weights multiply its rows."""

    def __init__(self) -> None:
        super().__init__([Layer()])


def test_a_first_layer_that_tells_no_weights_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^train.engine: p3 .* Plain does not"):
        split_layer(Plain(), Columns(0, 3), "p3")


def test_a_first_layer_that_reads_destination_rows_is_refused() -> None:
    class Reading(GATLayer):
        def input_weights(self) -> Mapping[str, int]:
            return super().input_weights()

        def update(self, h_dst: torch.Tensor, combined: torch.Tensor) -> torch.Tensor:
            return super().update(h_dst, combined) + h_dst.sum()

    model = GNN([Reading(3, 2, 1, concat=True)])
    split = split_layer(model, Columns(0, 3), "p3")
    zero, starts = torch.zeros(1, dtype=torch.int64), torch.tensor([0, 1])
    node = Nodes("item", zero, zero + 1)
    block = Block(1, 1, starts, zero, Relation("item", "near", "item"), zero, node, node)
    with pytest.raises(RequestError, match=r"^train.engine: no server has all rows"):
        split.logits([block], {"sources": torch.zeros(1, 2)})


@pytest.mark.parametrize(
    ("servers", "options", "message"),
    [
        (11, {}, r"^features: by-dimension wants a column a server .* 'item' has 10 for 11"),
        (2, {"topology": "partitioned"}, r"^features: by-dimension wants topology replicated"),
        (2, {"features": "by-colour"}, r"^features: expected by-node or by-dimension, given"),
    ],
)
def test_impossible_divisions_by_dimension_are_refused(
    servers: int,
    options: dict[str, Any],
    message: str,
    community_graph: GraphDirectory,
    tmp_path: Path,
) -> None:
    arguments = {"features": "by-dimension"} | options
    with pytest.raises(RequestError, match=message):
        partition_graph(community_graph, tmp_path / "out", servers, "random", **arguments)
    assert not (tmp_path / "out").exists()
