"""P3: the gradient of one process, from columns that lie on several servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopper.bench.parity import check_engine, read_recorded
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.engines.reference import Reference
from hopper.errors import RequestError
from hopper.features import LocalRows, PartitionedRows, RemoteRows
from hopper.graph.directory import GraphDirectory
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.layouts import divide_columns

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8, "dropout": 0.3},
    "sage": {"name": "sage", "layers": 3, "hidden": 8, "dropout": 0.3},
    # Wider than the features, so that these are added up before they are multiplied.
    "wide gcn": {"name": "gcn", "layers": 2, "hidden": 12, "dropout": 0.3},
    "wide sage": {"name": "sage", "layers": 2, "hidden": 12, "dropout": 0.3},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 3, "dropout": 0.3},
    "deepgcn": {"name": "deepgcn", "layers": 3, "hidden": 8, "dropout": 0.3},
    "film": {"name": "film", "layers": 2, "hidden": 8, "dropout": 0.3},
    "one layer": {"name": "sage", "layers": 1, "hidden": 8},
    "one deep layer": {"name": "deepgcn", "layers": 1, "hidden": 8},
}
WORLDS = [(1, 1), (2, 1), (3, 1), (2, 2)]


def case_config(
    model: str, partitioned: Path, run_dir: Path, engine: str = "p3", **train: Any
) -> dict[str, Any]:
    """Two recorded iterations of a model."""
    return {
        "data": {"partitioned": str(partitioned)},
        "model": MODELS[model],
        "sampler": {"fanouts": [4, 3, 2][: MODELS[model]["layers"]]},
        "train": {
            "engine": engine,
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
    """The community graph over servers, its features by node or by dimension."""
    folder, made = tmp_path_factory.mktemp("divided"), {}

    def divide(servers: int, features: Any) -> Path:
        key = servers, features
        if key not in made:
            made[key] = folder / f"{features}-{servers}"
            partition_graph(community_graph, made[key], servers, "random", features=features)
        return made[key]

    return divide


@pytest.mark.parametrize(("servers", "ranks_per_server"), WORLDS)
def test_its_gradient_is_that_of_one_process(
    servers: int,
    ranks_per_server: int,
    divided: Callable[[int, str], Path],
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    """And so are losses and scores those of another engine on the same nodes by server."""
    world = servers * ranks_per_server
    columns, nodes = divided(servers, "by-dimension"), divided(servers, "by-node")
    cluster = {
        path: {
            "servers": serve_partitions(path, servers) if servers > 1 else [],
            "ranks_per_server": ranks_per_server,
        }
        for path in (columns, nodes)
    }
    cases = {}
    for model in MODELS:
        for name, path in (("p3", columns), ("model_centric", nodes)):
            run_dir = tmp_path / f"{name}-{model.replace(' ', '_')}"
            cases[model, name] = case_config(model, path, run_dir, name)
    # The second iteration has fewer roots than there are ranks.
    few = min(83 // world, 82)
    cases["few", "p3"] = case_config("gat", columns, tmp_path / "few", batch_size=few)
    for values in cases.values():
        values["cluster"] = cluster[Path(values["data"]["partitioned"])]
    found = dict(zip(cases, train_cases(list(cases.values()), world, tmp_path), strict=True))
    for (model, name), values in cases.items():
        if name != "p3":
            continue
        config = make_config(values)
        recorded = read_recorded(Path(config.train.run_dir) / "gradients")
        assert [moment.step for moment in recorded] == [0, 1]
        reference = Reference(config, PartitionedGraph.open(columns), world)
        parity = check_engine(model, "float64", reference, recorded)
        assert parity.gradient_difference < 1e-10, parity
        assert parity.loss_difference < 1e-10, parity
        if model != "few":
            other = found[model, "model_centric"]
            assert found[model, "p3"]["losses"] == pytest.approx(other["losses"], rel=1e-9)
            assert found[model, "p3"]["val"] == pytest.approx(other["val"], rel=1e-9)
        assert found[model, "p3"]["bytes"]["feature"] == 0
        assert (found[model, "p3"]["bytes"]["partial"] > 0) == (servers > 1)


def test_a_server_stores_its_columns_of_all_nodes(
    community_graph: GraphDirectory,
    divided: Callable[[int, str], Path],
    serve_partitions: Callable[[Path, int], list[str]],
) -> None:
    graph = PartitionedGraph.open(divided(3, "by-dimension"))
    by_node = PartitionedGraph.open(divided(3, "by-node"))
    assert [columns.width for columns in divide_columns(10, 3)] == [3, 3, 4]
    assert np.array_equal(graph.original_ids("item"), by_node.original_ids("item"))
    whole = np.asarray(community_graph.features("item"))[graph.original_ids("item")]
    for server, (first, stop) in enumerate(divide_columns(10, 3)):
        assert np.array_equal(graph.features("item", server), whole[:, first:stop])
        assert np.array_equal(
            graph.labels("item", server),
            np.asarray(community_graph.labels("item"))[graph.original_ids("item")],
        )
    remote = RemoteRows(graph, serve_partitions(graph.path, 3), 60)
    try:
        rows, ids = PartitionedRows(graph, 1, remote), np.array([5, 250, 17])
        assert np.array_equal(rows.whole("item", ids).gathered().numpy(), whole[ids])
        assert np.array_equal(LocalRows(graph, 1).gather("features", "item", ids), whole[ids, 3:6])
    finally:
        remote.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"sampler": {"kind": "labor"}},
            r"^sampler.kind: p3 .* expected \"node\", given \"labor\"$",
        ),
        ({"cache": {"policy": "benefit", "memory": "device"}}, r"^cache.policy: under p3 "),
        ({"learnable": {"types": ["item"]}}, r"^learnable.types: p3 divides features"),
        ({"train": {"engine": "zero_hop"}}, r"^train.engine: the features of .* expected p3 "),
        ({"model": {"name": "rgcn"}}, r"^train.engine: p3 divides the features of one node type"),
    ],
)
def test_what_it_cannot_train_is_refused(
    change: dict[str, Any], told: str, divided: Callable[[int, str], Path], tmp_path: Path
) -> None:
    path = divided(2, "by-dimension")
    values = case_config("sage", path, tmp_path / "run")
    for section, own in change.items():
        values[section] = values.get(section, {}) | own
    config = make_config(values)
    with pytest.raises(RequestError, match=told):
        check_request(Request(config, PartitionedGraph.open(path)))


@pytest.mark.parametrize(
    ("servers", "options", "told"),
    [
        (11, {}, r"^features: by-dimension wants a column a server .* 'item' has 10 for 11"),
        (2, {"topology": "partitioned"}, r"^features: by-dimension wants topology replicated"),
        (2, {"features": "by-colour"}, r"^features: expected by-node or by-dimension, given"),
    ],
)
def test_a_division_that_cannot_be_had_is_refused(
    servers: int,
    options: dict[str, Any],
    told: str,
    community_graph: GraphDirectory,
    tmp_path: Path,
) -> None:
    given = {"features": "by-dimension"} | options
    with pytest.raises(RequestError, match=told):
        partition_graph(community_graph, tmp_path / "out", servers, "random", **given)
    assert not (tmp_path / "out").exists()
