"""Ranks that are processes, over gloo and gRPC, train as those that are threads; some on a GPU."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hopper.bench.parity import (
    LIMITS,
    SETTLED_LIMIT,
    check_engine,
    compare_gradients,
    read_recorded,
)
from hopper.config import make_config
from hopper.engines.reference import Reference
from hopper.features import open_graph
from hopper.graph.directory import GraphDirectory
from hopper.graph.importers import ImportOptions, import_graph
from hopper.partition import partition_graph

from .conftest import assert_exact
from .features import OF_ONE_TYPE, Case, Sections, World, case_of, merged
from .graphs import MODELS
from .parity_rank import train_as_rank

InProcesses = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
DATA = Path(
    os.environ.get("HOPPER_TEST_DATA", Path(__file__).parents[2].parent / "shared" / "data")
)
# Of neutronstar's ways the one that is not chosen by measured times.
CASES = [
    case_of({"raf": "types, learned rows"}.get(engine, "node"), engine, 0)
    for engine in (*OF_ONE_TYPE[:-1], "raf")
] + [case_of("full", "neutronstar", 0, 1)]
ENGINES = ("model_centric", "hop", "zero_hop in passes", "cooperative")
ON_DEVICE: Sections = {
    "cache": {"policy": "benefit", "size": "40%", "memory": "device", "decline": False}
}
# What is trained on a GPU: a feature, engines, models, and more.
ON_GPU: list[tuple[str, tuple[str, ...], tuple[str, ...], Sections]] = [
    ("node", ENGINES, ("gcn", "sage", "gat", "deepgcn", "film"), {}),
    ("layer", ENGINES, ("wide sage",), {}),
    ("node", ENGINES[:3], ("wide sage",), ON_DEVICE),
    ("types, learned rows", (*ENGINES, "raf"), tuple(MODELS), {}),
    ("types, learned rows", ENGINES[:3], ("rgcn",), ON_DEVICE | {"learnable": {"storage": "mmap"}}),
    ("types, learned rows", ("raf",), ("rgcn",), ON_DEVICE | {"learnable": {"storage": "host"}}),
]


@pytest.fixture
def in_processes(run_ranks) -> InProcesses:
    """Train configurations in turn on two ranks, each a process of its own."""
    return lambda configs: list(run_ranks(train_as_rank, 2, configs)[0])


@pytest.fixture
def served(divided, serve_partitions, tmp_path) -> Callable[..., Any]:
    """Configure a run of a case, with feature servers of its own."""

    def configure(case: Case, name: str) -> dict[str, Any]:
        parts = divided(case)
        values = case.values(parts, tmp_path / name)
        if parts.layout.reads_remote_rows:
            values["cluster"]["servers"] = serve_partitions(parts.path, 2)
        return values

    return configure


def test_every_engine_over_gloo_and_grpc(served, train, in_processes):
    threads = train([(case, {}) for case in CASES])
    configs = [served(case, f"processes {case.engine}") for case in CASES]
    for thread, values, result in zip(threads, configs, in_processes(configs), strict=True):
        assert result["losses"] == pytest.approx(thread.result["losses"], rel=1e-12)
        for what in ("val", "bytes", "rows", "lookups"):
            assert result[what] == thread.result[what], (what, thread.case)
        folders = (thread.folder, Path(values["train"]["run_dir"]))
        of_both = [read_recorded(folder / "gradients") for folder in folders]
        for ours, theirs in zip(*of_both, strict=True):
            gradients = ours.gradients, theirs.gradients
            difference = compare_gradients(ours.step, *gradients, ours.loss, theirs.loss)
            assert difference.largest < 1e-12
        assert_exact(values, 2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(
    ("dtype", "limit", "loss_limit"),
    [
        ("float64", LIMITS["gradients"]["float64"], LIMITS["losses"]["float64"]),
        ("float32", SETTLED_LIMIT, SETTLED_LIMIT),
    ],
)
def test_gradients_on_a_gpu_are_those_of_one_process_on_the_cpu(
    dtype, limit, loss_limit, served, in_processes
):
    """Every engine and model trains with two ranks on one GPU, some with caches of every kind."""
    on_gpu = {"train": {"device": "cuda", "dtype": dtype}, "cluster": {"share_gpus": True}}
    configs: list[dict[str, Any]] = []
    for feature, engines, models, sections in ON_GPU:
        for engine, model in ((engine, model) for engine in engines for model in models):
            case = case_of(feature, engine, World(2, 1), 0, model)
            configs.append(merged(served(case, f"run {len(configs)}"), on_gpu, sections))
    in_processes(configs)
    for values in configs:
        config = make_config(values)
        recorded = read_recorded(Path(config.train.run_dir) / "gradients")
        reference = Reference(config, open_graph(config), 2, torch.device("cpu"))
        parity = check_engine(str(config.model), dtype, reference, recorded)
        assert parity.gradient_difference < limit, (config.model, config.train.engine)
        assert parity.loss_difference < loss_limit


@pytest.mark.skipif(not (DATA / "cora").is_dir(), reason=f"no real graphs at {DATA}")
def test_cora(serve_partitions, in_processes, tmp_path):
    """With its official split: the published neighbourhood, and two engines the same score."""
    options = ImportOptions(row_normalize=True)
    import_graph("npy", str(DATA / "cora"), tmp_path / "graph", options)
    graph = GraphDirectory.open(tmp_path / "graph")
    partition_graph(graph, tmp_path / "parts", 2, "metis")
    shared = {
        "data": {"partitioned": str(tmp_path / "parts")},
        "model": {"name": "gcn", "layers": 2, "hidden": 64, "dropout": 0.5},
        "sampler": {"fanouts": [-1, -1]},
        "train": {"epochs": 60, "learning_rate": 0.01, "weight_decay": 5e-4, "evaluate_every": 5},
        "cluster": {"servers": serve_partitions(tmp_path / "parts", 2)},
    }
    engines = ("hop", "zero_hop")
    own = [{"train": {"engine": name, "run_dir": str(tmp_path / name)}} for name in engines]
    in_processes([merged(shared, sections) for sections in own])
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in engines]
    hop, zero_hop = (summary["scores"]["test"]["accuracy"] for summary in summaries)
    assert zero_hop > 0.79
    # 1,000 test nodes: rounding may move the argmax of at most two of them.
    assert abs(hop - zero_hop) <= 0.002, (hop, zero_hop)
