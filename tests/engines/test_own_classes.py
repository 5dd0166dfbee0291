"""An engine, a sampler and a typed model from outside, and learnable rows wherever types have them:
the gradient of one process, as with built-ins."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from hopper.cluster.cluster import Cluster
from hopper.config import make_config
from hopper.engines import Request, TrainState
from hopper.engines.build import make_engine, make_learnable
from hopper.engines.checks import check_request
from hopper.engines.data_parallel import ModelCentric
from hopper.errors import ConfigError, RequestError
from hopper.features import PartitionedRows
from hopper.graph import GraphDirectory
from hopper.micrograph.samplers import find_sampler
from hopper.partition import PartitionedGraph, partition_graph
from hopper.timing.run_log import RunLog

from .exactness import assert_exact
from .typed_cases import LEARNABLE, MODELS, TRAIN, WIDTHS, make_graph

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]

NEAREST = {"engine": "nearest_rows:NearestRows"}
DROPPING = {"kind": "drop_edge:DropEdge", "fanouts": [3, 2], "kind_options": {"keep": 0.6}}
SAGE = {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.3}


def case(
    parts: Path, run_dir: Path, model: dict[str, Any], train: dict[str, Any], **more: Any
) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(parts)},
        "model": model,
        "sampler": {"fanouts": [3, 2]},
        "train": TRAIN
        | {"run_dir": str(run_dir), "evaluate_every": 1, "iterations_per_epoch": 2}
        | train,
        "hop": {"merge": "off"},
        "learnable": LEARNABLE,
    } | more


def compare(
    cases: list[dict[str, Any]],
    ranks_per_server: int,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    folder: Path,
) -> list[dict[str, Any]]:
    """Train the cases, on 2 servers, and compare each one's gradients with one process's."""
    world, addresses = 2 * ranks_per_server, {}
    for number, values in enumerate(cases):
        parts = values["data"]["partitioned"]
        graph = PartitionedGraph.open(parts)
        if parts not in addresses:
            served = graph.layout.reads_remote_rows
            addresses[parts] = serve_partitions(Path(parts), 2) if served else []
        values["train"]["run_dir"] = str(folder / str(number))
        values["cluster"] = {"servers": addresses[parts], "ranks_per_server": ranks_per_server}
    results = train_cases(cases, world, folder)
    for values in cases:
        assert_exact(values, world)
    return results


def test_plug_ins_have_the_gradient_of_one_process(
    serve_partitions: Callable[[Path, int], list[str]], train_cases: TrainCases, tmp_path: Path
) -> None:
    """An engine from outside, and a sampler where it divides topology."""
    graph = make_graph(tmp_path / "graph", tuple(WIDTHS))
    partition_graph(graph, tmp_path / "nodes", 2, "random")
    cases = [
        case(tmp_path / "nodes", tmp_path, MODELS["rgcn"], NEAREST, sampler=sampler)
        for sampler in ({"fanouts": [3, 2]}, DROPPING)
    ]
    compare(cases, 1, serve_partitions, train_cases, tmp_path / "runs")


def test_wrong_plug_ins_and_options_are_refused(
    community_graph: GraphDirectory, tmp_path: Path
) -> None:
    parts = partition_graph(community_graph, tmp_path / "parts", 2, "random")

    def check_refused(message: str, error: type[Exception] = ConfigError, **sections: Any) -> None:
        with pytest.raises(error, match=message):
            check_request(
                Request(make_config(case(parts.path, tmp_path, SAGE, {}) | sections), parts)
            )

    check_refused(
        "train.engine: drop_edge:DropEdge: expected a subclass of hopper.engines.engine.Engine",
        train={"engine": "drop_edge:DropEdge"},
    )
    check_refused(
        "train.engine_options.speed: hop takes",
        train={"engine": "hop", "engine_options": {"speed": 2}},
    )
    check_refused(
        "sampler.kind: nearest_rows:NearestRows: expected a subclass of .*NeighborSampler",
        sampler={"kind": "nearest_rows:NearestRows", "fanouts": [3, 2]},
    )
    check_refused(
        "sampler.kind_options.keep: Input should be less than or equal to 1",
        sampler=DROPPING | {"kind_options": {"keep": 2}},
    )
    check_refused(
        "model.name: nowhere:Model: module 'nowhere' cannot", model=SAGE | {"name": "nowhere:Model"}
    )
    check_refused(
        "name_options: those of a class of one's own", model=SAGE | {"name_options": {"a": 1}}
    )
    check_refused(
        "learnable.types: expected node types that the model reads",
        RequestError,
        learnable={"types": ["nobody"]},
    )


def test_draws_of_a_plug_in_do_not_depend_on_other_roots(tmp_path: Path) -> None:
    """A batch's subgraph is the union of the subgraphs of its roots."""
    graph = make_graph(tmp_path / "graph", ())
    topologies = {relation: graph.topology(relation) for relation in graph.schema.relations}
    ids = {name: np.arange(kind.count) for name, kind in graph.schema.node_types.items()}
    plug_in = find_sampler("drop_edge:DropEdge", {"keep": 0.5})
    sampler = plug_in.kind(topologies, ids, "paper", [3, 2], 7, **plug_in.options)

    def edges(roots: np.ndarray) -> set[tuple[Any, ...]]:
        subgraph = sampler.sample(roots, 1, 4)
        drawn_edges = set()
        for hop, drawn in enumerate(subgraph.hops):
            for relation, (indptr, indices, _) in drawn.items():
                ends = np.repeat(np.arange(indptr.size - 1), np.diff(indptr))
                sources = subgraph.nodes[relation.src][indices]
                targets = subgraph.nodes[relation.dst][ends]
                drawn_edges |= {
                    (hop, relation, *pair) for pair in zip(targets, sources, strict=True)
                }
        return drawn_edges

    roots = np.arange(0, 40, 3)
    union = set().union(*(edges(np.array([root])) for root in roots))
    assert edges(roots) == union
    plain_sampler = find_sampler("node", {}).kind(topologies, ids, "paper", [3, 2], 7)
    kept_count, full_count = (
        sum(edges.indices.size for edges in candidate.sample(roots, 1, 4).hops[0].values())
        for candidate in (sampler, plain_sampler)
    )
    assert 0.2 < kept_count / full_count < 0.8


class Pairs(ModelCentric):
    """An engine with an option of a type that JSON lacks."""

    spec = replace(ModelCentric.spec, name="pairs")

    def __init__(self, state: TrainState, bounds: tuple[int, int] = (0, 1)) -> None:
        super().__init__(state)
        self.bounds = bounds


def test_options_have_the_types_of_the_constructors_annotations(
    community_graph: GraphDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of the configuration becomes the tuple that the class asks for."""
    module = ModuleType("own_engine_for_test")
    module.Pairs = Pairs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    parts = partition_graph(community_graph, tmp_path / "parts", 1, "random")
    train = {"engine": "own_engine_for_test:Pairs", "engine_options": {"bounds": [2, 5]}}
    request = Request(make_config(case(parts.path, tmp_path / "run", SAGE, train)), parts)
    check_request(request)
    cluster = Cluster(0, 1, 1, torch.device("cpu"), 1.0)
    rows = PartitionedRows(parts, 0, None)
    made = make_engine(request, cluster, rows, RunLog(), make_learnable(request, cluster))
    assert isinstance(made.engine, Pairs)
    assert made.engine.bounds == (2, 5)


def test_auto_leaves_out_an_engine_that_refuses(
    community_graph: GraphDirectory, tmp_path: Path
) -> None:
    parts = partition_graph(community_graph, tmp_path / "parts", 2, "random")
    values = case(parts.path, tmp_path / "run", SAGE, {"engine": "auto"}, hop={"merge": 2})
    check_request(Request(make_config(values), parts))
    values["train"] |= {"engine": "hop"}
    with pytest.raises(RequestError, match=r"hop\.merge: expected at most 1"):
        check_request(Request(make_config(values), parts))
