"""Draws by weight, with replacement and in time where relations are divided: the gradient and the
scores of one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopper.cluster.cluster import Cluster
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.engines.checks import check_request
from hopper.errors import RequestError
from hopper.features import PartitionedRows
from hopper.graph import GraphDirectory
from hopper.hetero.divide import partition_by_relation
from hopper.hetero.learnable import LearnableRows
from hopper.hetero.metatree import make_metatree
from hopper.hetero.vertex_cut import cut, part_bytes
from hopper.inference import Scene, make_inference
from hopper.partition import PartitionedGraph, partition_graph

from .exactness import assert_exact
from .typed_cases import CITES, LEARNABLE, MODELS, TRAIN, make_drawn_graph

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]

SAMPLERS: dict[str, dict[str, Any]] = {
    "by weight": {"kind": "weighted"},
    "by weight, again": {"kind": "weighted", "kind_options": {"replace": True}},
    "with replacement": {"kind": "replacement"},
    "in time": {"kind": "temporal"},
    "the latest": {"kind": "temporal", "kind_options": {"pick": "recent"}},
}
UNBIASED: dict[str, dict[str, Any]] = {
    "unbiased": {"kind": "weighted", "kind_options": {"unbiased": True}},
    "unbiased, again": {"kind": "weighted", "kind_options": {"unbiased": True, "replace": True}},
}
CUT_MODELS: dict[str, dict[str, Any]] = {
    **{name: MODELS[name] for name in ("rgcn", "rgat", "hgt")},
    "own, mean of present": {
        **MODELS["own, relations apart"],
        "aggregate": "own_aggregations:DroppingInParts",
        "combine": "mean_of_present",
    },
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    return make_drawn_graph(tmp_path_factory.mktemp("draws") / "graph")


def memory_for_parts(graph: GraphDirectory) -> int:
    """Return the memory of a server with which CITES is cut in two."""
    tree = make_metatree(graph.schema, "paper", 2)
    return max(sum(part_bytes(graph, part)) for part in cut(graph, tree, CITES, 2))


def case(
    parts: Path, sampler: dict[str, Any], model: dict[str, Any], run: Path, **sections: Any
) -> dict[str, Any]:
    values: dict[str, Any] = {
        "data": {"partitioned": str(parts)},
        "model": model,
        "sampler": {"fanouts": [3, 2, 2][: model["layers"]]} | sampler,
        "train": TRAIN | {"engine": "raf", "run_dir": str(run), "iterations_per_epoch": 2},
        "hop": {"merge": "off"},
    }
    if sampler != UNBIASED["unbiased"] and sampler != SAMPLERS["in time"]:
        # Without learnable rows roots are drawn for where they are read alone.
        values["learnable"] = LEARNABLE | {"types": ["author"]}
    if sampler in (UNBIASED["unbiased, again"], SAMPLERS["the latest"]):
        values["learnable"]["tables"] = "per_server_table"
    for section, keys in sections.items():
        values[section] = values.get(section, {}) | keys
    return values


def check(cases: list[dict[str, Any]], results: list[dict[str, Any]], world: int) -> None:
    for values, result in zip(cases, results, strict=True):
        assert_exact(values, world)
        if values["train"]["engine"] == "raf":
            assert result["rows"]["remote"] == 0


def score_only(cases: list[dict[str, Any]], compared: list[dict[str, Any]]) -> None:
    """Let only those cases be evaluated whose scores are compared."""
    for values in cases:
        values["train"]["evaluate_every"] = int(any(values is scored for scored in compared))


def pair_up(samplers: Iterable[str], models: Iterable[str]) -> list[tuple[str, str]]:
    """Pair every sampler with one model, and every model with at least one sampler."""
    names, kinds = list(samplers), list(models)
    assert len(kinds) <= len(names)
    return list(zip(names, itertools.cycle(kinds), strict=False))


def test_parts_of_a_relation_draw_together_what_one_process_draws(
    graph: GraphDirectory, train_cases: TrainCases, tmp_path: Path
) -> None:
    memory = memory_for_parts(graph)
    parts, uncut = tmp_path / "parts", tmp_path / "whole"
    partitioned = partition_by_relation(graph, parts, 4, layers=2, server_memory=memory)
    assert [
        partition.part for partition in partitioned.partitions if partition.roots == (CITES,)
    ] == [
        (0, 2),
        (1, 2),
    ]
    partition_by_relation(graph, uncut, 4, layers=2)
    chosen = pair_up(SAMPLERS, CUT_MODELS)
    cases = [
        case(folder, SAMPLERS[sampler], CUT_MODELS[model], tmp_path / f"{folder.name} {number}")
        for folder in (parts, uncut)
        for number, (sampler, model) in enumerate(chosen)
        if folder == parts or number % 3 == 0
    ]
    score_only(cases, compared=[*cases[: len(chosen) : 3], *cases[len(chosen) :]])
    results = train_cases(cases, 4, tmp_path / "world")
    check(cases[: len(chosen)], results[: len(chosen)], 4)
    for cut_result, uncut_result in zip(
        results[: len(chosen) : 3], results[len(chosen) :], strict=True
    ):
        assert cut_result["losses"] == pytest.approx(uncut_result["losses"], rel=1e-9)
        assert cut_result["val"] == uncut_result["val"]
    for sampler in UNBIASED.values():
        values = case(parts, sampler, CUT_MODELS["rgcn"], tmp_path / "run")
        with pytest.raises(RequestError, match=r"sampler\.kind: 'weighted' with unbiased = true"):
            check_request(Request(make_config(values), partitioned))


@pytest.mark.parametrize("pick", ["in time", "the latest"])
def test_scores_are_those_of_whole_neighbourhoods_in_time(
    pick: str, graph: GraphDirectory, tmp_path: Path
) -> None:
    """Scores are taken at the roots' own times, and at one time for all of them."""
    model = {"name": "hgt", "layers": 2, "hidden": 8, "heads": 2}
    partition_by_relation(graph, tmp_path / "raf", 1, layers=2)
    partition_graph(graph, tmp_path / "zero_hop", 1, "random")
    scores: dict[int | None, list[torch.Tensor]] = {None: [], 3: []}
    for engine, at in itertools.product(("raf", "zero_hop"), scores):
        values = case(
            *(tmp_path / engine, SAMPLERS[pick], model, tmp_path / "run"), train={"engine": engine}
        )
        request = Request(
            make_config(values | {"learnable": {}}), PartitionedGraph.open(tmp_path / engine)
        )
        rows = PartitionedRows(request.graph, 0, None)
        cluster = Cluster(0, 1, 1, torch.device("cpu"), 1.0)
        scene = Scene(request, cluster, rows, torch.float64, LearnableRows(cluster), 4, at=at)
        network = make_model(request).eval()
        inference = make_inference(scene, network)
        with torch.no_grad():
            ids, logits = inference.rows(network, inference.split("val"))
        scores[at].append(logits[np.argsort(ids)])
    for raf, zero_hop in scores.values():
        assert torch.allclose(raf, zero_hop, rtol=0, atol=1e-12)
    assert not torch.allclose(scores[None][0], scores[3][0])
