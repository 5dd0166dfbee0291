"""Draws in time, and predicted edges, over divided topology: the same run, bit for bit.

A server has the in-edges of its own nodes, and of its halo, alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopper.config.engines import BASELINES
from hopper.partition import partition_graph

from . import test_edges_in_time as of_edges
from . import test_times as of_nodes
from .exactness import assert_exact

pytestmark = pytest.mark.filterwarnings("ignore:split ")

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]
Serve = Callable[[Path, int], list[str]]

TOPOLOGIES = ("replicated", "partitioned", "halo:1")
# Engine, way of drawing and model. Gradients under each topology: test_conformance.py.
OF_NODES = {
    False: (("hop", "recent", "gat"), ("naive", "uniform", "sage")),
    True: (("zero_hop", "recent", "rgcn"), ("cooperative", "uniform", "hgt")),
}
# By whether there are several types, whether edges are links, and how many ranks a server has.
OF_EDGES: dict[tuple[bool, bool, int], dict[str, str]] = {
    (False, True, 1): {"zero_hop": "recent", "cooperative": "full"},
    (True, True, 2): {"model_centric": "node", "locality": "replacement"},
    (True, False, 1): {"hop": "recent"},
}


@pytest.mark.parametrize("typed", [False, True])
def test_runs_in_time_are_those_of_the_replicated_topology(
    typed: bool, serve_partitions: Serve, train_cases: TrainCases, tmp_path: Path
) -> None:
    graph = of_nodes.make_graph(tmp_path / "graph", typed=typed)
    cases = {}
    for topology in TOPOLOGIES:
        partition_graph(graph, tmp_path / topology, 2, "random", topology=topology)
    addresses = {topology: serve_partitions(tmp_path / topology, 2) for topology in TOPOLOGIES}
    for topology, (engine, pick, model) in itertools.product(TOPOLOGIES, OF_NODES[typed]):
        run = {
            "engine": BASELINES.get(engine, engine),
            "record_gradients": [0, 1],
            "iterations_per_epoch": 2,
            "run_dir": str(tmp_path / f"run-{topology}-{engine}"),
        }
        cases[topology, engine] = of_nodes.values_of(
            *(tmp_path / topology, model, pick),
            train=run,
            hop={"merge": 1},
            cluster={"servers": addresses[topology]},
        )
    results = dict(
        zip(cases, train_cases(list(cases.values()), 2, tmp_path / "world"), strict=True)
    )
    check_runs(cases, results, 2, halo_suffices=("zero_hop", "locality"))


@pytest.mark.parametrize(("typed", "are_links", "ranks_per_server"), OF_EDGES)
def test_edges_are_predicted_as_with_the_replicated_topology(
    typed: bool,
    are_links: bool,
    ranks_per_server: int,
    serve_partitions: Serve,
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    """Draws are in time and without. Other servers' lists, and scores, leave out links."""
    graph = of_edges.make_graph(tmp_path / "graph", typed=typed, are_links=are_links)
    chosen = OF_EDGES[typed, are_links, ranks_per_server]
    for topology in TOPOLOGIES:
        partition_graph(graph, tmp_path / topology, 2, "random", topology=topology)
    addresses = {topology: serve_partitions(tmp_path / topology, 2) for topology in TOPOLOGIES}
    cases = {}
    for topology, (engine, sampler) in itertools.product(TOPOLOGIES, chosen.items()):
        values = of_edges.values_of(
            tmp_path / topology, typed=typed, are_links=are_links, pick=sampler
        )
        if sampler not in of_nodes.PICKS:
            fanouts = {} if sampler == "full" else {"fanouts": [3, 2]}
            values["sampler"] = {"kind": sampler} | fanouts
        values["train"] |= {
            "engine": BASELINES.get(engine, engine),
            "record_gradients": [0],
            "iterations_per_epoch": 1,
            "run_dir": str(tmp_path / f"run-{topology}-{engine}"),
        }
        values["hop"] = {"merge": "off"}
        values["cluster"] = {"servers": addresses[topology], "ranks_per_server": ranks_per_server}
        cases[topology, engine] = values
    world = 2 * ranks_per_server
    results = train_cases(list(cases.values()), world, tmp_path / "world")
    check_runs(cases, dict(zip(cases, results, strict=True)), world)


def check_runs(
    cases: dict[tuple[str, str], dict[str, Any]],
    results: dict[tuple[str, str], dict[str, Any]],
    world: int,
    halo_suffices: tuple[str, ...] = (),
) -> None:
    """Assert that runs over divided topology are those over all of it, but for bytes of topology.

    Parameters
    ----------
    cases, results: by topology and engine, configurations and results.
    world: how many ranks trained.
    halo_suffices: engines whose ranks read nothing that is not in a halo of one hop.
    """
    for (topology, engine), values in cases.items():
        if topology == "replicated":
            continue
        replicated, result = results["replicated", engine], results[topology, engine]
        for key in ("losses", "val", "rows"):
            assert result[key] == replicated[key], (topology, engine, key)
        drawn = result["bytes"]["topology"] - replicated["bytes"]["topology"]
        if engine == "cooperative" or (topology != "partitioned" and engine in halo_suffices):
            assert drawn == 0, (topology, engine)
        elif topology == "partitioned":
            assert drawn > 0, engine
        else:
            partitioned = results["partitioned", engine]["bytes"]["topology"]
            assert 0 <= drawn < partitioned - replicated["bytes"]["topology"], engine
        ignored = {"topology": 0}
        assert result["bytes"] | ignored == replicated["bytes"] | ignored, (topology, engine)
        if engine != "locality":
            assert_exact(values, world, f"{topology}, {engine}")
