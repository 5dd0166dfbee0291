"""Draws in time, and edges that are predicted, where a server has the in-edges of its own nodes,
and of its halo, alone: the same run, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopper.partition import partition_graph

from . import test_edges_in_time as of_edges
from . import test_times as of_nodes
from .exactness import assert_exact

pytestmark = pytest.mark.filterwarnings("ignore:split ")

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]
Served = Callable[[Path, int], list[str]]

TOPOLOGIES = ("replicated", "partitioned", "halo:1")
ENGINES = ("model_centric", "zero_hop", "hop", "cooperative", "locality")


@pytest.mark.parametrize("typed", [False, True])
def test_runs_in_time_are_those_of_the_replicated_topology(
    typed: bool, serve_partitions: Served, train_cases: TrainCases, tmp_path: Path
) -> None:
    graph = of_nodes.make_graph(tmp_path / "graph", typed=typed)
    engines = ENGINES if typed else (*ENGINES, "naive")
    models = ("rgcn", "hgt") if typed else ("sage", "gat")
    chosen, cases = list(itertools.product(TOPOLOGIES, engines)), {}
    for topology in TOPOLOGIES:
        partition_graph(graph, tmp_path / topology, 2, "random", topology=topology)
    served = {each: serve_partitions(tmp_path / each, 2) for each in TOPOLOGIES}
    for topology, engine in chosen:
        number = engines.index(engine)
        pick, model = of_nodes.PICKS[number % 2], models[number // 2 % 2]
        run = {
            "engine": engine,
            "record_gradients": [0, 1],
            "iterations_per_epoch": 2,
            "run_dir": str(tmp_path / f"run-{topology}-{engine}"),
        }
        cases[topology, engine] = of_nodes.values_of(
            *(tmp_path / topology, model, pick),
            train=run,
            hop={"merge": 1},
            cluster={"servers": served[topology]},
        )
    found = dict(zip(cases, train_cases(list(cases.values()), 2, tmp_path / "world"), strict=True))
    check_runs(cases, found, 2, halo_suffices=("zero_hop", "locality"))


@pytest.mark.parametrize(
    ("typed", "are_links", "ranks_per_server"),
    [(False, True, 1), (True, True, 2), (True, False, 1)],
)
def test_edges_are_predicted_as_with_the_replicated_topology(
    typed: bool,
    are_links: bool,
    ranks_per_server: int,
    serve_partitions: Served,
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    """In time and without; links are left out of lists of other servers, and of scores."""
    graph = of_edges.make_graph(tmp_path / "graph", typed=typed, are_links=are_links)
    engines = ENGINES if typed else (*ENGINES, "naive")
    samplers = ("uniform", "node", "recent", "replacement")
    for topology in TOPOLOGIES:
        partition_graph(graph, tmp_path / topology, 2, "random", topology=topology)
    served = {each: serve_partitions(tmp_path / each, 2) for each in TOPOLOGIES}
    cases = {}
    for topology, engine in itertools.product(TOPOLOGIES, engines):
        number = engines.index(engine) % len(samplers)
        values = of_edges.values_of(
            tmp_path / topology, typed=typed, are_links=are_links, pick=samplers[number]
        )
        if number % 2:
            values["sampler"] = {"kind": samplers[number], "fanouts": [3, 2]}
        if engine == "cooperative":
            values["sampler"] = {"kind": "full"}
        values["train"] |= {
            "engine": engine,
            "record_gradients": [0],
            "iterations_per_epoch": 1,
            "run_dir": str(tmp_path / f"run-{topology}-{engine}"),
        }
        values["hop"] = {"merge": "off"}
        values["cluster"] = {"servers": served[topology], "ranks_per_server": ranks_per_server}
        cases[topology, engine] = values
    world = 2 * ranks_per_server
    found = train_cases(list(cases.values()), world, tmp_path / "world")
    check_runs(cases, dict(zip(cases, found, strict=True)), world)


def check_runs(
    cases: dict[tuple[str, str], dict[str, Any]],
    found: dict[tuple[str, str], dict[str, Any]],
    world: int,
    halo_suffices: tuple[str, ...] = (),
) -> None:
    """Runs over divided topology are those over all of it, but for what is asked for.

    Parameters
    ----------
    cases, found: by topology and engine, configurations and results.
    world: how many ranks trained.
    halo_suffices: engines whose ranks read nothing that is not in a halo of one hop.
    """
    for (topology, engine), values in cases.items():
        if topology == "replicated":
            continue
        replicated, result = found["replicated", engine], found[topology, engine]
        for key in ("losses", "val", "rows"):
            assert result[key] == replicated[key], (topology, engine, key)
        drawn = result["bytes"]["topology"] - replicated["bytes"]["topology"]
        if engine == "cooperative" or (topology != "partitioned" and engine in halo_suffices):
            assert drawn == 0, (topology, engine)
        elif topology == "partitioned":
            assert drawn > 0, engine
        else:
            whole = found["partitioned", engine]["bytes"]["topology"]
            assert 0 <= drawn < whole - replicated["bytes"]["topology"], engine
        # Rows are compared above; what is asked for again, because a server is busy, counts too.
        others = {"topology": 0, "feature": 0}
        assert result["bytes"] | others == replicated["bytes"] | others, (topology, engine)
        if engine != "locality":
            assert_exact(values, world, f"{topology}, {engine}")
