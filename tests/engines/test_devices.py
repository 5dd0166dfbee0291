"""Ranks that share a GPU: the gradient of one process on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hopper.bench.parity import LIMITS, SETTLED_LIMIT, check_engine, read_recorded
from hopper.config import make_config
from hopper.engines.reference import Reference
from hopper.features import open_graph
from hopper.graph import GraphDirectory
from hopper.partition import PartitionedGraph

from .conftest import RANK_SCRIPT, Sections, merged
from .features import FEATURES, GRAPHS, World, case_of
from .typed_cases import MODELS

ENGINES = ("model_centric", "hop", "zero_hop in passes", "cooperative")
ON_DEVICE: Sections = {
    "cache": {"policy": "benefit", "size": "40%", "memory": "device", "decline": False}
}
# A feature, engines, models, and more.
CHOSEN: list[tuple[str, tuple[str, ...], tuple[str, ...], Sections]] = [
    ("node", ENGINES, ("gcn", "sage", "gat", "deepgcn", "film"), {}),
    ("layer", ENGINES, ("wide sage",), {}),
    ("node", ENGINES[:3], ("wide sage",), ON_DEVICE),
    ("types, learned rows", (*ENGINES, "raf"), tuple(MODELS), {}),
    ("types, learned rows", ENGINES[:3], ("rgcn",), ON_DEVICE | {"learnable": {"storage": "mmap"}}),
    ("types, learned rows", ("raf",), ("rgcn",), ON_DEVICE | {"learnable": {"storage": "host"}}),
]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("dtype", "limit", "loss_limit"),
    [
        ("float64", LIMITS["gradients"]["float64"], LIMITS["losses"]["float64"]),
        ("float32", SETTLED_LIMIT, SETTLED_LIMIT),
    ],
)
def test_gradients_on_a_gpu_are_those_of_one_process_on_the_cpu(
    dtype: str,
    limit: float,
    loss_limit: float,
    serve_partitions: Callable[[Path, int], list[str]],
    run_ranks: Callable[..., list[Any]],
    tmp_path: Path,
) -> None:
    """Every engine and model trains with two ranks on one GPU, some with caches of every kind."""
    configs: list[dict[str, Any]] = []
    divided: dict[Any, tuple[PartitionedGraph, list[str]]] = {}
    for feature, engines, models, sections in CHOSEN:
        for engine, model in ((engine, model) for engine in engines for model in models):
            case = case_of(feature, engine, World(2, 1), 0, model)
            if case.division not in divided:
                name = FEATURES[feature].graph
                path = tmp_path / name
                graph = GraphDirectory.open(path) if path.exists() else GRAPHS[name](path)
                parts = case.divide(graph, tmp_path / f"parts {len(divided)}")
                served = parts.layout.reads_remote_rows
                divided[case.division] = parts, serve_partitions(parts.path, 2) if served else []
            parts, addresses = divided[case.division]
            on_gpu = {
                "train": {"device": "cuda", "dtype": dtype},
                "cluster": {"servers": addresses, "share_gpus": True},
            }
            values = case.values(parts, tmp_path / f"run {len(configs)}")
            configs.append(merged(values, on_gpu, sections))
    file = tmp_path / "cases.json"
    file.write_text(json.dumps([{"config": values} for values in configs]))
    run_ranks(RANK_SCRIPT, 2, tmp_path / "ranks", str(file))
    for values in configs:
        config = make_config(values)
        recorded = read_recorded(Path(config.train.run_dir) / "gradients")
        reference = Reference(config, open_graph(config), 2, torch.device("cpu"))
        parity = check_engine(str(config.model), dtype, reference, recorded)
        assert parity.gradient_difference < limit, (config.model, config.train.engine)
        assert parity.loss_difference < loss_limit
