"""An engine and a sampler from outside: their gradient, draws and options."""

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
from hopper.engines.model_centric import ModelCentric
from hopper.features import PartitionedRows
from hopper.graph import GraphDirectory
from hopper.micrograph.samplers import find_sampler
from hopper.partition import partition_graph
from hopper.timing.run_log import RunLog

from .conftest import merged
from .exactness import assert_exact
from .features import World, case_of
from .typed_cases import LEARNABLE, TRAIN, WIDTHS, make_graph

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


@pytest.mark.parametrize("feature", ["types", "own sampler"])
def test_an_engine_from_outside_has_the_gradient_of_one_process(
    feature: str,
    train_cases: Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    case = case_of(feature, "model_centric", World(2, 1), 0, "rgcn")
    parts = case.divide(make_graph(tmp_path / "graph", tuple(WIDTHS)), tmp_path / "parts")
    own = {"train": {"engine": "nearest_rows:NearestRows"}}
    values = merged(case.values(parts, tmp_path / "run"), own)
    train_cases([values], 2, tmp_path)
    assert_exact(values, 2)


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
