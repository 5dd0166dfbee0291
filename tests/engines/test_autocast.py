"""Matrix products in half the bits: near the exact gradient, under every engine and model."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hopper.bench.parity import check_engine, read_recorded
from hopper.config import make_config
from hopper.engines import ENGINE_CLASSES, Request
from hopper.engines.assemble import make_group_trainer, make_model
from hopper.engines.reference import Reference
from hopper.errors import ConfigError
from hopper.graph.directory import GraphDirectory
from hopper.hetero.write_partition import partition_by_relation
from hopper.migrate.packed_model import PackedModel
from hopper.models import Objective
from hopper.ops import in_full, products_in
from hopper.partition import PartitionedGraph, partition_graph
from hopper.run_log import RunLog

from .typed_cases import LEARNABLE, MODELS, WITH_FEATURES, make_graph

HOMOGENEOUS = {
    "gcn": {"name": "gcn"},
    "sage": {"name": "sage"},
    "gat": {"name": "gat", "heads": 2},
    "deepgcn": {"name": "deepgcn"},
    "film": {"name": "film"},
}
# Where one ReLU of few roots opens that did not, more is lost than rounding loses.
LIMIT = 0.3
# Eight bits of a number are kept, or eleven.
MEDIANS = {"bfloat16": 0.02, "float16": 0.004}


def case(
    parts: Path, run_dir: Path, model: dict[str, Any], engine: str, half: str
) -> dict[str, Any]:
    layers = model.get("layers", 2)
    return {
        "data": {"partitioned": str(parts)},
        "model": {"layers": layers, "hidden": 8, "dropout": 0.3} | model,
        "sampler": {"fanouts": [4, 3, 2][:layers]},
        "train": {
            "engine": engine,
            "batch_size": 16,
            "epochs": 1,
            "iterations_per_epoch": 2,
            "autocast": half,
            "record_gradients": [0, 1],
            "run_dir": str(run_dir),
        },
        "hop": {"merge": "off"},
        "learnable": LEARNABLE,
    }


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_gradients_are_near_those_of_one_process(
    half: str,
    community_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    typed = make_graph(tmp_path / "typed", WITH_FEATURES)
    cases = []

    def add(parts: str, servers: list[str], model: dict[str, Any], engine: str) -> None:
        run_dir = tmp_path / f"run {len(cases)}"
        cluster = {"servers": servers, "ranks_per_server": 1}
        cases.append(case(tmp_path / parts, run_dir, model, engine, half) | {"cluster": cluster})

    for name, graph in (("nodes", community_graph), ("typed nodes", typed)):
        partition_graph(graph, tmp_path / name, 2, "random")
    partition_by_relation(typed, tmp_path / "relations", 2, layers=3)
    partition_graph(community_graph, tmp_path / "columns", 2, "random", features="by-dimension")
    homogeneous, columns, addresses = (
        serve_partitions(tmp_path / name, 2) for name in ("nodes", "columns", "typed nodes")
    )
    # Each engine with one of them: rounding does not depend on it.
    is_brain = half == "bfloat16"
    for engine in ("zero_hop", "cooperative") if is_brain else ("hop",):
        for model in HOMOGENEOUS.values():
            add("nodes", homogeneous, model, engine)
    for model in HOMOGENEOUS.values():
        if is_brain:
            add("columns", columns, model, "p3")
        else:
            add("nodes", homogeneous, model, "naive")
    for engine in ("model_centric", "raf") if is_brain else ("cooperative", "raf"):
        # What float16 has beside, one scale of the loss for all ranks, a few models tell under raf.
        few = 4 if engine == "raf" and not is_brain else 1
        for model in list(MODELS.values())[::few]:
            if engine == "raf":
                add("relations", [], model, engine)
            else:
                add("typed nodes", addresses, model, engine)
    train_cases(cases, 2, tmp_path)
    found = []
    for values in cases:
        config = make_config(values)
        engine = ENGINE_CLASSES[config.train.engine]
        assert engine.rounds(config)
        assert not engine.is_exact(config)
        recorded = read_recorded(Path(config.train.run_dir) / "gradients")
        graph = PartitionedGraph.open(config.data.partitioned)
        parity = check_engine(str(values), "float32", Reference(config, graph, 2), recorded)
        overall = parity.gradients[0].overall
        assert 1e-5 < overall < LIMIT, (config.model, config.train.engine, overall)
        found.append(overall)
    assert statistics.median(found) < MEDIANS[half]


def test_gradients_that_float16_cannot_hold_end_the_run(community_graph: GraphDirectory) -> None:
    """Small ones are not lost; what is not a number is told."""
    partition_graph(community_graph, community_graph.path.parent / "whole", 1, "random")
    config = make_config(
        case(
            community_graph.path.parent / "whole",
            Path("run"),
            HOMOGENEOUS["sage"],
            "hop",
            "float16",
        )
    )
    graph = PartitionedGraph.open(config.data.partitioned)
    device = torch.device("cpu")
    request = Request(config, graph)
    trainer = make_group_trainer(request, RunLog(None), 10**6, device)
    packed = PackedModel(make_model(request))
    packed.clear()
    weight = next(packed.module.parameters())
    trainer.backward(packed, 1e-9 * weight.sum())
    assert float(packed.loss) == pytest.approx(float(1e-9 * weight.detach().sum()))
    assert trainer.unscale(packed)
    assert weight.grad is not None
    assert weight.grad.flatten()[0] == pytest.approx(1e-9)
    packed.gradients[3] = float("inf")
    assert not trainer.unscale(packed)


def test_what_is_computed_in_what() -> None:
    cpu = torch.device("cpu")
    x = torch.randn(3, 4)
    with products_in(torch.bfloat16, cpu):
        product = x @ x.t()
        assert product.dtype == torch.bfloat16
        assert in_full(product).dtype == torch.float32
        assert in_full(x.double()).dtype == torch.float64
    with products_in(None, cpu):
        assert (x @ x.t()).dtype == torch.float32
    # What a user's own model makes of less than float32 is left alone elsewhere.
    assert in_full(x.bfloat16()).dtype == torch.bfloat16


def test_labels_are_not_rounded() -> None:
    objective, labels = Objective("float"), torch.tensor([[2015.0]])
    logits = torch.tensor([[2000.0]])
    with products_in(torch.bfloat16, torch.device("cpu")):
        loss = objective.loss_sum(logits.bfloat16(), labels)
    assert float(loss) == 225


def test_it_takes_the_place_of_float32() -> None:
    values = {"data": {"partitioned": "parts"}, "train": {"autocast": "bfloat16"}}
    values["train"]["dtype"] = "float64"
    with pytest.raises(ConfigError, match="autocast: 'bfloat16' takes the place of float32"):
        make_config(values)
