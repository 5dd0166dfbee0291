"""Training where a server has the in-edges of its own nodes, and of its halo, alone: the same run,
bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cache_server.draws.spec import Drawn
from hopper.config import Config, make_config
from hopper.config.engines import BASELINES
from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.engines.checks import check_request
from hopper.engines.reference import EveryServersRows
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.micrograph.sample import NeighborSampler
from hopper.models import run_model
from hopper.partition import PartitionedGraph, partition_graph
from hopper.train.tensor_file import BEST_MODEL_FILE, load_model

from .exactness import assert_exact
from .typed_cases import COUNTS, LEARNABLE, make_graph

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8, "dropout": 0.3},
    # These are sampled by LABOR.
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 3},
    "rgcn": {"name": "rgcn", "layers": 2, "hidden": 8, "dropout": 0.3},
    "hgt": {"name": "hgt", "layers": 2, "hidden": 8, "heads": 2},
}
# Gradients under each topology: test_conformance.py. Other samplers: test_divided_draws.py.
CHOSEN = {
    "homogeneous": (
        ("gcn", "zero_hop"),
        ("gcn", "naive"),
        ("gat", "cooperative"),
    ),
    "typed": (("rgcn", "cooperative"), ("hgt", "model_centric"), ("rgcn", "locality")),
}
WITH_HALO = {
    "homogeneous": (("gcn", "zero_hop"), ("gcn", "naive")),
    "typed": CHOSEN["typed"],
}
ENGINES = ("cooperative", "model_centric", "zero_hop", "hop", "locality")


def case_config(
    model: dict[str, Any], partitioned: Path, run_dir: Path, engine: str = "cooperative"
) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(partitioned)},
        "model": model,
        "sampler": {"kind": "labor" if model["name"] == "gat" else "node", "fanouts": [4, 3]},
        "train": {
            "engine": BASELINES.get(engine, engine),
            "batch_size": 8,
            "epochs": 1,
            "iterations_per_epoch": 2,
            "dtype": "float64",
            "record_gradients": [0, 1],
            "run_dir": str(run_dir),
            "seed": 3,
        },
        "hop": {"merge": 1},
        "learnable": LEARNABLE,
    }


@pytest.mark.parametrize("kind", ["homogeneous", "typed"])
def test_runs_are_those_of_the_replicated_topology(
    kind: str,
    community_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    is_typed = kind == "typed"
    graph = make_graph(tmp_path / "graph", tuple(COUNTS)) if is_typed else community_graph
    # Of several types, servers have several ranks.
    ranks = 2 if is_typed else 1
    cases = {}
    for topology in ("replicated", "partitioned", "halo:1"):
        parts = tmp_path / topology
        partition_graph(graph, parts, 2, "random", topology=topology)
        cluster = {"servers": serve_partitions(parts, 2), "ranks_per_server": ranks}
        for name, engine in (WITH_HALO if topology == "halo:1" else CHOSEN)[kind]:
            run_dir = tmp_path / f"run-{topology}-{name}-{engine}"
            values = case_config(MODELS[name], parts, run_dir, engine)
            cases[topology, name, engine] = values | {"cluster": cluster}
    results = dict(zip(cases, train_cases(list(cases.values()), 2 * ranks, tmp_path), strict=True))
    for case, values in cases.items():
        topology, name, engine = case
        if topology == "replicated":
            continue
        replicated, result = results["replicated", name, engine], results[case]
        for key in ("losses", "val", "rows"):
            assert result[key] == replicated[key], (case, key)
        drawn = count_asked_bytes(results, case)
        if engine == "cooperative":
            assert drawn == 0
        elif topology == "partitioned":
            # What is drawn elsewhere is asked for.
            assert drawn > 0
        elif engine in ("zero_hop", "locality"):
            # Roots are at home, and so is all that two layers draw from.
            assert drawn == 0
        else:
            assert drawn < count_asked_bytes(results, ("partitioned", name, engine))
        assert result["bytes"] | {"topology": 0} == replicated["bytes"] | {"topology": 0}, case
        if engine != "locality":
            assert_exact(values, 2 * ranks, f"{name}, {engine}")
        config = make_config(values)
        assert max(result["val"]) == score(config)


def count_asked_bytes(results: dict[Any, dict[str, Any]], case: tuple[str, str, str]) -> int:
    """Count the bytes of neighbours that ranks asked servers for."""
    bytes_ = [results[run]["bytes"]["topology"] for run in (case, ("replicated", *case[1:]))]
    return int(bytes_[0] - bytes_[1])


@pytest.mark.filterwarnings("ignore:split drawn")
def test_halos_and_what_is_asked_for_beyond_them(
    serve_partitions: Callable[[Path, int], list[str]], train_cases: TrainCases, tmp_path: Path
) -> None:
    """Three layers read in-edges of nodes up to two hops away.

    Edges are few, so that a halo is far from all there is.
    """
    generator = np.random.default_rng(5)
    nodes, edges = 400, 700
    graph = GraphDirectory.from_arrays(
        tmp_path / "graph",
        generator.integers(0, nodes, (2, edges)),
        features=generator.random((nodes, 5)),
        labels=generator.integers(0, 4, nodes),
        edge_features=generator.random((edges, 3)),
        edge_weights=np.exp(generator.normal(0, 2, edges)),
        options=ImportOptions(split=RandomSplit(0.3, 0.2)),
    )
    model = {"name": "sage", "layers": 3, "hidden": 4, "edge_features": True}
    cases = {}
    for halo, engines in {1: ("zero_hop", "model_centric"), 2: ("zero_hop", "hop")}.items():
        parts = partition_graph(graph, tmp_path / f"{halo}", 3, "random", topology=f"halo:{halo}")
        for share in parts.description["per_server"]:
            assert share["edges"] + share["halo_edges"] < 0.9 * edges
        sections = {
            "cluster": {"servers": serve_partitions(parts.path, 3)},
            "hop": {"merge": "off"},
        }
        for engine in engines:
            values = case_config(model, parts.path, tmp_path / f"run-{halo}-{engine}", engine)
            values["sampler"] = {"kind": "weighted", "fanouts": [2, 2, 2]}
            values["train"] |= {"evaluate_every": 0}
            cases[halo, engine] = values | sections
    results = dict(zip(cases, train_cases(list(cases.values()), 3, tmp_path), strict=True))
    drawn = {case: result["bytes"]["topology"] for case, result in results.items()}
    assert drawn[1, "model_centric"] > drawn[1, "zero_hop"] > 0
    assert drawn[2, "zero_hop"] == drawn[2, "hop"] == 0
    assert results[2, "zero_hop"]["losses"] == results[1, "zero_hop"]["losses"]
    for (halo, engine), values in cases.items():
        assert_exact(values, 3, f"{halo}, {engine}")


def score(config: Config) -> float:
    """Return the validation accuracy of a run's best model, from whole neighbourhoods at once."""
    graph = PartitionedGraph.open(config.data.partitioned)
    target = graph.schema.target_type()
    sampler = NeighborSampler(
        {relation: graph.topology(relation) for relation in graph.schema.relations},
        {node_type: graph.original_ids(node_type) for node_type in graph.schema.node_types},
        target,
        [-1] * config.model.layers,
        seed=0,
    )
    ids = np.sort(graph.global_ids(target)[graph.split("val")])
    subgraph, rows = sampler.sample(ids, 0, 0), EveryServersRows(graph)
    x = {
        node_type: torch.from_numpy(rows.gather("features", node_type, nodes)).double()
        for node_type, nodes in subgraph.nodes.items()
        if nodes.size
    }
    model = make_model(Request(config, graph)).eval()
    load_model(Path(config.train.run_dir) / BEST_MODEL_FILE, model)
    with torch.no_grad():
        logits = run_model(model, subgraph.typed_blocks(), x)
    labels = rows.gather("labels", target, ids).reshape(-1)
    return float((logits.argmax(1).numpy() == labels).mean())


def test_samplers_that_need_all_edges_are_refused(
    community_graph: GraphDirectory, tmp_path: Path
) -> None:
    parts = partition_graph(
        community_graph, tmp_path / "parts", 2, "random", topology="partitioned"
    )

    def check(engine: str, **sampler: Any) -> None:
        values = case_config(MODELS["gcn"], parts.path, tmp_path / "run", engine)
        config = make_config(values | ({"sampler": sampler} if sampler else {}))
        check_request(Request(config, parts))

    for engine in (*ENGINES, "naive", "auto"):
        check(engine)
    with pytest.raises(RequestError, match=r"is partitioned: .* \(or auto\), given .*:NeutronStar"):
        check("neutronstar", kind="full")
    with pytest.raises(RequestError, match="'layer' weighs nodes by all edges"):
        check("cooperative", kind="layer", layer_sizes=[30, 20])
    plug_in = "tests.engines.test_partitioned_topology:OwnDraw"
    with pytest.raises(RequestError, match=rf'sampler.kind: .* given "{plug_in}" with zero_hop'):
        check("zero_hop", kind=plug_in, fanouts=[4, 3])
    check("cooperative", kind=plug_in, fanouts=[4, 3])
    check("auto", kind=plug_in, fanouts=[4, 3])


class OwnDraw(NeighborSampler):
    """A sampler whose draws servers do not know."""

    def draw(self, *arguments: Any) -> Drawn:
        return super().draw(*arguments)
