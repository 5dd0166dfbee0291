"""Results made by hand, and a tiny partitioned graph to run engines on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from hopper.bench.table import print_results
from hopper.cluster.traffic import CAUSES
from hopper.config import Config, make_config
from hopper.graph import GraphDirectory
from hopper.partition import PartitionedGraph, partition_graph
from hopper.timing.run_log import STAGES

NODES, CLASSES, DIM = 240, 3, 64


@pytest.fixture(scope="module", autouse=True)
def _starts(bench_in_pool) -> None:
    """Train runs on this host with ranks that stay."""


def make_run(
    engine: str,
    round_index: int,
    seconds: list[float],
    feature_bytes: int = 4_000_000,
    model_bytes: int = 0,
) -> dict[str, Any]:
    """Return an entry of ``runs`` with one epoch for each number of seconds."""
    epochs = [
        {
            "seconds": duration,
            "loss": 1.0,
            "iterations": 4,
            "bytes": dict.fromkeys(CAUSES, 0)
            | {"feature": feature_bytes, "model": model_bytes, "gradient": 200_000},
            "rows": {"local": 900, "remote": 300, "remote_unique": 250, "cached": 50},
            "lookups": {"paper": [50, 250]},
            "stage_seconds": dict.fromkeys(STAGES, 0.0)
            | {"gather": duration / 2, "compute": duration / 4},
        }
        for duration in seconds
    ]
    return {
        "engine": engine,
        "options": {},
        "model": {"name": "sage"},
        "round": round_index,
        "epochs": epochs,
        "nic_bytes": None,
        "peak_rss_mib": [100.0, 100.0],
        "scores": {"val": {"accuracy": 0.5}, "test": {}},
    }


def make_results(runs: list[dict[str, Any]], parity: dict[str, float]) -> dict[str, Any]:
    """Return the content of a results.json around ``runs``."""
    return {
        "schema": 1,
        "commit": "0" * 40,
        "versions": {},
        "machine": {"cpu": "A processor", "cores": 2, "memory_gib": 8.0, "kernel": "Linux"},
        "config": {},
        "dataset": {
            "name": "tiny",
            "node_types": {"node": {"count": 240}},
            "relations": {"node/edge/node": 1900},
        },
        "partition": {
            "method": "metis",
            "servers": 2,
            "edge_cut": 0.11,
            "locality": {"micrograph": 0.8, "subgraph": 0.5},
        },
        "runs": runs,
        "parity": {
            "reference": "one process",
            "max_relative_gradient_difference": dict(parity),
            "max_relative_loss_difference": dict(parity),
        },
    }


def print_to_text(results: dict[str, Any], problems: list[str], width: int = 80) -> str:
    """Return the table that is printed on a terminal of so many columns."""
    console = Console(width=width)
    with console.capture() as captured:
        print_results(console, results, problems)
    return captured.get()


@pytest.fixture(scope="session")
def tiny_graph(tmp_path_factory) -> PartitionedGraph:
    """A graph of two loosely tied halves on two servers, so that METIS finds the cut."""
    folder, generator = tmp_path_factory.mktemp("tiny"), np.random.default_rng(11)
    dst = np.repeat(np.arange(NODES), 8)
    half = NODES // 2
    away = generator.random(dst.size) < 0.08
    src = generator.integers(0, half, dst.size) + half * ((dst >= half) ^ away)
    labels = generator.integers(0, CLASSES, NODES)
    rows = generator.standard_normal((NODES, DIM), dtype=np.float32)
    rows[np.arange(NODES), labels] += 2
    order = generator.permutation(NODES)
    splits = {"train": order[:130], "val": order[130:170], "test": order[170:210]}
    graph = GraphDirectory.from_arrays(
        folder / "graph", np.stack([src, dst]), rows, labels, splits, name="tiny"
    )
    return partition_graph(graph, folder / "partitioned", 2, backend="pymetis")


@pytest.fixture(scope="session")
def tiny_config(tiny_graph) -> Config:
    """A configuration that trains in seconds: 2 ranks, 3 iterations an epoch, with dropout."""
    return make_config(
        {
            "data": {"partitioned": str(tiny_graph.path)},
            "model": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.25},
            "sampler": {"fanouts": [4, 4]},
            "train": {"batch_size": 25, "epochs": 2, "evaluate_every": 2, "seed": 5},
            # Merged, two ranks have a single time step, and no model moves.
            "hop": {"merge": "off"},
            "cluster": {"timeout_seconds": 30.0},
        }
    )


@pytest.fixture
def config_file(tiny_config, tmp_path) -> Path:
    """The path of the tiny configuration as a file."""
    path = tmp_path / "config.json"
    path.write_text(tiny_config.model_dump_json())
    return path
