"""Rows stored in 16 or 8 bits: every engine computes the gradient of one process on these rows, and
fewer bytes travel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopper.cluster.cluster import Cluster
from hopper.config import make_config
from hopper.config.engines import BASELINES
from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.features import PartitionedRows
from hopper.graph import GraphDirectory
from hopper.hetero.learnable import LearnableRows
from hopper.inference import Scene, make_inference
from hopper.partition import partition_graph

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]
Serve = Callable[[Path, int], list[str]]

ENGINES: dict[str, dict[str, Any]] = {
    "model_centric": {"train": {"engine": "model_centric"}},
    "model_centric, cached": {
        "train": {"engine": "model_centric"},
        "cache": {"policy": "hotness", "size": "20%"},
    },
    "model_centric, on the device": {
        "train": {"engine": "model_centric"},
        "cache": {"policy": "lru", "size": "20%", "memory": "device"},
    },
    "model_centric, foreseen": {
        "train": {"engine": "model_centric"},
        "pipeline": {"depth": 2, "lookahead": 2},
    },
    "zero_hop": {"train": {"engine": "zero_hop", "micro_batch": 7}},
    "hop": {"train": {"engine": "hop"}, "hop": {"merge": 1}},
    "hop, no pregather": {"train": {"engine": "hop"}, "hop": {"merge": "off", "pregather": False}},
    "cooperative": {"train": {"engine": "cooperative"}},
    "naive": {"train": {"engine": BASELINES["naive"]}},
    "neutronstar": {"train": {"engine": BASELINES["neutronstar"]}, "sampler": {"kind": "full"}},
}
MODELS: dict[str, dict[str, Any]] = {
    "sage": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.2},
    # Wider than the input: the cooperative engine sends input rows as they are.
    "wide sage": {"name": "sage", "layers": 2, "hidden": 16},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 2},
}


def case(
    parts: Path, addresses: list[str], model: dict[str, Any], run_dir: Path, options: dict[str, Any]
) -> dict[str, Any]:
    """Configure a run in float64 whose first two gradients are recorded."""
    train = {
        "batch_size": 16,
        "epochs": 2 if options.get("sampler") else 1,
        "dtype": "float64",
        "seed": 3,
        "evaluate_every": 0,
        "record_gradients": [0, 1],
        "iterations_per_epoch": 0 if options.get("sampler") else 2,
        "run_dir": str(run_dir),
    }
    values: dict[str, Any] = {
        "data": {"partitioned": str(parts)},
        "model": model,
        "sampler": {"fanouts": [4, 3]},
        "train": train,
        "cluster": {"servers": addresses, "ranks_per_server": 1},
    }
    for section, keys in options.items():
        values[section] = values.get(section, {}) | keys
    return values


def test_fewer_bytes_travel(
    community_graph: GraphDirectory,
    serve_partitions: Serve,
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    """A row of ten numbers takes 40 bytes, 20, or 14 with its scale. Ids and headers stay."""
    cases = []
    for dtype in ("float32", "float16", "bfloat16", "int8"):
        parts = tmp_path / dtype
        partition_graph(community_graph, parts, 2, "random", feature_dtypes=[dtype])
        options = ENGINES["model_centric"]
        run_dir = tmp_path / f"run-{dtype}"
        cases.append(case(parts, serve_partitions(parts, 2), MODELS["sage"], run_dir, options))
    results = train_cases(cases, 2, tmp_path / "world")
    full, half, brain, byte = (result["bytes"]["feature"] for result in results)
    rows = results[0]["rows"]["remote_unique"]
    assert all(result["rows"]["remote_unique"] == rows for result in results)
    # Names of dtypes and lengths of messages take a byte or two more or less.
    assert brain == pytest.approx(half, rel=0.01)
    assert full - half == pytest.approx(20 * rows, rel=0.02)
    assert half - byte == pytest.approx(6 * rows, rel=0.02)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_evaluation_reads_stored_forms(
    dtype: str, community_graph: GraphDirectory, tmp_path: Path
) -> None:
    """Scores are those of the same numbers in 32 bits."""
    small = partition_graph(
        community_graph, tmp_path / "small", 1, "random", feature_dtypes=[dtype]
    )
    plain = partition_graph(community_graph, tmp_path / "whole", 1, "random")
    rows = PartitionedRows(small, 0, None).stored("item", np.arange(300)).to(torch.float32)
    (tmp_path / "whole/server-0/features/item.npy").unlink()
    np.save(tmp_path / "whole/server-0/features/item.npy", rows.to_tensor().numpy())
    scores = []
    for graph in (small, plain):
        values = case(graph.path, [], MODELS["sage"], tmp_path / "run", {})
        del values["cluster"]
        request = Request(make_config(values), graph)
        cluster = Cluster(0, 1, 1, torch.device("cpu"), 1.0)
        scene = Scene(
            request, cluster, PartitionedRows(graph, 0, None), torch.float64,
            LearnableRows(cluster), 6, 2048,
        )  # fmt: skip
        network = make_model(request).eval()
        inference = make_inference(scene, network)
        with torch.no_grad():
            scores.append(inference.rows(network, inference.split("val"))[1])
    assert torch.equal(*scores)
