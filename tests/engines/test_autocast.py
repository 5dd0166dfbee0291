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
from hopper.config.engines import BASELINES
from hopper.engines import Request, find_engine
from hopper.engines.assemble import make_model, make_runner
from hopper.engines.reference import Reference
from hopper.errors import ConfigError
from hopper.graph.directory import GraphDirectory
from hopper.hetero.divide import partition_by_relation
from hopper.migrate.flat_model import FlatModel, LossScale
from hopper.models import Objective
from hopper.ops import in_full, products_in
from hopper.partition import PartitionedGraph, partition_graph
from hopper.timing.run_log import RunLog

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
HALVES = list(MEDIANS)


def case(
    parts: Path, run_dir: Path, model: dict[str, Any], engine: str, half: str
) -> dict[str, Any]:
    layers = model.get("layers", 2)
    return {
        "data": {"partitioned": str(parts)},
        "model": {"layers": layers, "hidden": 8, "dropout": 0.3} | model,
        "sampler": {"fanouts": [4, 3, 2][:layers]},
        "train": {
            "engine": BASELINES.get(engine, engine),
            "batch_size": 16,
            "epochs": 1,
            "iterations_per_epoch": 2,
            "autocast": half,
            "record_gradients": [0],
            "run_dir": str(run_dir),
        },
        "hop": {"merge": "off"},
        "learnable": LEARNABLE,
    }


@pytest.fixture(scope="module")
def divided(
    community_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Path, list[str]]]:
    """Graphs divided over two servers, and their addresses, by how they are divided."""
    folder = tmp_path_factory.mktemp("divided")
    typed = make_graph(folder / "typed", WITH_FEATURES)
    for name, graph in (("nodes", community_graph), ("typed nodes", typed)):
        partition_graph(graph, folder / name, 2, "random")
    partition_by_relation(typed, folder / "relations", 2, layers=3)
    partition_graph(community_graph, folder / "columns", 2, "random", features="by-dimension")
    addresses = {name: serve_partitions(folder / name, 2) for name in ("nodes", "typed nodes")}
    addresses["columns"] = serve_partitions(folder / "columns", 2)
    return {name: (folder / name, servers) for name, servers in addresses.items()} | {
        "relations": (folder / "relations", [])
    }


@pytest.mark.parametrize("half", HALVES)
def test_gradients_are_near_those_of_one_process(
    half: str,
    divided: dict[str, tuple[Path, list[str]]],
    train_cases: Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    """Gradients of every model and engine differ by little more than rounding.

    Rounding depends on the model, and on how an engine divides a layer. So engines that divide
    layers meet every model, with one of the dtypes. Engines that train whole layers share the
    models.
    """
    cases = []

    def add(parts: str, model: dict[str, Any], engine: str) -> None:
        run_dir, (folder, servers) = tmp_path / f"run {len(cases)}", divided[parts]
        cluster = {"servers": servers, "ranks_per_server": 1}
        values = case(folder, run_dir, model, engine, half) | {"cluster": cluster}
        # Scores are not compared here: one run that has them shows that they can be.
        values["train"]["evaluate_every"] = int(not cases)
        cases.append(values)

    turn = HALVES.index(half)
    for number, model in enumerate(HOMOGENEOUS.values()):
        if number % 2 == turn:
            add("nodes", model, ("cooperative", "naive")[turn])
        else:
            add("columns", model, "p3")
    for number, model in enumerate(MODELS.values()):
        if number % 3 == turn:
            add("relations", model, "raf")
        elif number % 3 == turn + 1:
            add("typed nodes", model, ("hop", "cooperative")[turn])
    train_cases(cases, 2, tmp_path)
    differences = []
    for values in cases:
        config = make_config(values)
        spec = find_engine(config).kind.spec
        assert spec.approximations(config) == [f"train.autocast = {half}"]
        recorded = read_recorded(Path(config.train.run_dir) / "gradients")
        graph = PartitionedGraph.open(config.data.partitioned)
        parity = check_engine(str(values), "float32", Reference(config, graph, 2), recorded)
        overall = parity.gradients[0].overall
        assert 1e-5 < overall < LIMIT, (config.model, config.train.engine, overall)
        differences.append(overall)
    assert statistics.median(differences) < MEDIANS[half]


def test_float16_keeps_small_gradients_and_notices_infinite_ones(
    community_graph: GraphDirectory,
) -> None:
    """Small gradients are not lost, and infinite ones are noticed."""
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
    trainer = make_runner(request, RunLog(None), 10**6, device)
    packed = FlatModel(make_model(request), LossScale(is_on=True))
    packed.clear()
    weight = next(packed.module.parameters())
    trainer.backward(packed, 1e-9 * weight.sum())
    assert float(packed.loss) == pytest.approx(float(1e-9 * weight.detach().sum()))
    packed.unscale()
    assert packed.is_finite()
    assert weight.grad is not None
    assert weight.grad.flatten()[0] == pytest.approx(1e-9)
    packed.gradients[3] = float("inf")
    assert not packed.is_finite()


def test_products_are_in_half_precision_and_the_rest_in_full() -> None:
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


def test_autocast_with_float64_is_refused() -> None:
    values = {"data": {"partitioned": "parts"}, "train": {"autocast": "bfloat16"}}
    values["train"]["dtype"] = "float64"
    with pytest.raises(ConfigError, match="autocast: 'bfloat16' takes the place of float32"):
        make_config(values)
