"""Ranks that share a GPU: messages through host memory, and the gradient of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hopper.bench.parity import (
    LIMITS,
    SETTLED_LIMIT,
    check_engine,
    read_recorded,
)
from hopper.config import make_config
from hopper.engines.reference import Reference
from hopper.graph.directory import GraphDirectory
from hopper.hetero.divide import partition_by_relation
from hopper.partition import PartitionedGraph, partition_graph

from .typed_cases import LEARNABLE, MODELS, TRAIN, WITH_FEATURES, make_graph

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]
ENGINES = ("model_centric", "hop", "zero_hop", "cooperative")
HOMOGENEOUS: dict[str, dict[str, Any]] = {
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8},
    "sage": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.3},
    "gat": {"name": "gat", "layers": 2, "hidden": 8, "heads": 2, "dropout": 0.3},
    "deepgcn": {"name": "deepgcn", "layers": 3, "hidden": 8},
    "film": {"name": "film", "layers": 3, "hidden": 8},
}


class Graphs:
    """Two graphs, divided among two servers by node, and one of them by relation."""

    def __init__(
        self, plain: GraphDirectory, serve: Callable[[Path, int], list[str]], folder: Path
    ) -> None:
        self._folder = folder
        typed = make_graph(folder / "typed", WITH_FEATURES)
        partition_graph(plain, folder / "plain nodes", 2, "random")
        partition_graph(typed, folder / "typed nodes", 2, "random")
        partition_by_relation(typed, folder / "typed relations", 2, layers=3)
        self._servers = {
            name: serve(folder / name, 2) for name in ("plain nodes", "typed nodes")
        } | {"typed relations": []}

    def case(
        self, run: str, model: dict[str, Any], engine: str, cluster: dict[str, Any], **train: Any
    ) -> dict[str, Any]:
        """Configure a run. The model and the engine choose its graph and division."""
        kind = "plain" if model["name"] in HOMOGENEOUS else "typed"
        parts = f"{kind} {'relations' if engine == 'raf' else 'nodes'}"
        values = {
            "data": {"partitioned": str(self._folder / parts)},
            "model": model,
            "sampler": {"fanouts": [4, 3, 2][: model["layers"]]},
            "train": TRAIN | {"engine": engine, "run_dir": str(self._folder / run)} | train,
            "hop": {"merge": "off"},
            "cluster": cluster | {"servers": self._servers[parts], "ranks_per_server": 1},
        }
        return values | ({"learnable": LEARNABLE} if kind == "typed" else {})


@pytest.fixture
def graphs(
    community_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    tmp_path: Path,
) -> Graphs:
    return Graphs(community_graph, serve_partitions, tmp_path)


def test_messages_through_host_memory_are_the_same(
    graphs: Graphs, train_cases: TrainCases, tmp_path: Path
) -> None:
    """Messages are copied to the host, sent and copied back, on a CPU too."""
    results = {}
    for shares in (False, True):
        cases = [
            graphs.case(
                f"{shares} {engine} {model['name']}",
                *(model, engine, {"share_gpus": shares}),
                iterations_per_epoch=2,
            )
            for model, engines in (
                (HOMOGENEOUS["gat"], ("model_centric", "hop")),
                (MODELS["hgt"], ("cooperative", "raf")),
            )
            for engine in engines
        ]
        results[shares] = train_cases(cases, 2, tmp_path / f"{shares}")
    for direct, through_host in zip(results[False], results[True], strict=True):
        for kind in ("losses", "val", "bytes"):
            assert through_host[kind] == direct[kind]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("dtype", "limit", "loss_limit"),
    [
        ("float64", LIMITS["gradients"]["float64"], LIMITS["losses"]["float64"]),
        ("float32", SETTLED_LIMIT, SETTLED_LIMIT),
    ],
)
def test_gradients_on_a_gpu_are_those_of_one_process_on_the_cpu(
    graphs: Graphs,
    train_cases: TrainCases,
    tmp_path: Path,
    dtype: str,
    limit: float,
    loss_limit: float,
) -> None:
    """Every engine and model trains with two ranks on one GPU, some with caches of every kind."""
    chosen = [(model, engine) for model in HOMOGENEOUS.values() for engine in ENGINES]
    chosen += [(model, engine) for model in MODELS.values() for engine in (*ENGINES, "raf")]
    cases, gpu = [], {"device": "cuda", "dtype": dtype}
    for number, (model, engine) in enumerate(chosen):
        cases.append(graphs.case(f"run {number}", model, engine, {"share_gpus": True}, **gpu))
        if engine != "cooperative" and model in (HOMOGENEOUS["sage"], MODELS["rgcn"]):
            cache = {"policy": "benefit", "size": "40%", "memory": "device", "decline": False}
            run = {"train": cases[-1]["train"] | {"run_dir": str(tmp_path / f"cached {number}")}}
            cases.append(cases[-1] | run | {"cache": cache})
            if model["name"] == "rgcn":
                cases[-1]["learnable"] = LEARNABLE | {
                    "storage": "host" if engine == "raf" else "mmap"
                }
    for number, engine in enumerate(ENGINES):
        case = graphs.case(
            f"layer {number}", HOMOGENEOUS["sage"], engine, {"share_gpus": True}, **gpu
        )
        cases.append(case | {"sampler": {"kind": "layer", "layer_sizes": [60, 40]}})
    train_cases(cases, 2, tmp_path)
    for values in cases:
        config = make_config(values)
        graph = PartitionedGraph.open(config.data.partitioned)
        recorded = read_recorded(Path(config.train.run_dir) / "gradients")
        reference = Reference(config, graph, 2, torch.device("cpu"))
        parity = check_engine(str(config.model), dtype, reference, recorded)
        assert parity.gradient_difference < limit, (config.model, config.train.engine)
        assert parity.loss_difference < loss_limit
