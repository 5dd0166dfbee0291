"""Runs that round on purpose: fewer bits in products or on the wire, near the exact gradient."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hopper.bench.parity import check_engine, read_recorded
from hopper.config import make_config
from hopper.config.engines import BASELINES
from hopper.engines import ENGINE_CLASSES, Request, find_engine
from hopper.engines.assemble import make_model, make_runner
from hopper.engines.reference import Reference
from hopper.features import open_graph
from hopper.graph import GraphDirectory
from hopper.migrate.flat_model import FlatModel, LossScale
from hopper.models import Objective
from hopper.ops import in_full, products_in
from hopper.partition import partition_graph
from hopper.timing.run_log import RunLog

from .conftest import Sections, merged
from .features import FEATURES, GRAPHS, World, case_of
from .typed_cases import MODELS

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]
Train = Callable[..., tuple[list[dict[str, Any]], list[dict[str, Any]]]]
Asked = tuple[str, str, str, Sections]
"""a feature, an engine, a model, and more sections"""

# Where one ReLU of few roots opens that did not, more is lost than rounding loses.
LIMIT = 0.3
# Eight bits of a number are kept, or eleven.
MEDIANS = {"bfloat16": 0.02, "float16": 0.004}
HALVES = list(MEDIANS)


@pytest.fixture(scope="module")
def train_near(train_cases: TrainCases, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train in float32 on two servers; returns configurations and results."""
    folder, divided, runs = tmp_path_factory.mktemp("near"), {}, []

    def train(asked: list[Asked]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        configs = []
        for feature, engine, model, sections in asked:
            case = case_of(feature, engine, World(2, 1), 0, model)
            if case.division not in divided:
                name = FEATURES[feature].graph
                path = folder / name
                graph = GraphDirectory.open(path) if path.exists() else GRAPHS[name](path)
                divided[case.division] = case.divide(graph, folder / f"parts {len(divided)}")
            runs.append(folder / f"run {len(runs)}")
            values = case.values(divided[case.division], runs[-1])
            single = {"dtype": "float32", "evaluate_every": 0, "batch_size": 16}
            configs.append(merged(values, {"train": single}, sections))
        return configs, train_cases(configs, 2, folder)

    return train


def distance(values: dict[str, Any]) -> float:
    """How far the first gradient is from the exact one."""
    config = make_config(values)
    recorded = read_recorded(Path(config.train.run_dir) / "gradients")
    reference = Reference(config, open_graph(config), 2)
    parity = check_engine(config.train.engine, "float32", reference, recorded[:1])
    return parity.gradients[0].overall


@pytest.mark.parametrize("half", HALVES)
def test_gradients_with_products_in_half_the_bits(half: str, train_near: Train) -> None:
    """Rounding depends on the model, and on how an engine divides a layer.

    So engines that divide layers meet every model, with one of the dtypes. Engines that train whole
    layers share the models. One run that is scored shows that runs can be.
    """
    turn, asked = HALVES.index(half), list[Asked]()
    for number, model in enumerate(("gcn", "sage", "gat", "deepgcn", "film")):
        engine = ("cooperative", "naive")[turn] if number % 2 == turn else "p3"
        asked.append(("node", engine, model, {}))
    for number, model in enumerate(MODELS):
        if number % 3 == turn:
            asked.append(("types, learned rows", "raf", model, {}))
        elif number % 3 == turn + 1:
            asked.append(("types, learned rows", ("hop", "cooperative")[turn], model, {}))
    rounds = {"train": {"autocast": half, "iterations_per_epoch": 1, "record_gradients": [0]}}
    scored = merged(rounds, {"train": {"evaluate_every": 1}})
    configs, _ = train_near(
        [(*case[:3], rounds if number else scored) for number, case in enumerate(asked)]
    )
    for values in configs:
        config = make_config(values)
        spec = find_engine(config).kind.spec
        assert spec.approximations(config) == [f"train.autocast = {half}"]
    distances = [distance(values) for values in configs]
    assert all(1e-5 < far < LIMIT for far in distances), distances
    assert statistics.median(distances) < MEDIANS[half]


def test_partial_sums_rounded_on_the_wire(train_near: Train) -> None:
    # Eight times the dtype's relative rounding: several roundings add up on the way.
    limits = {"bfloat16": 8 * 2**-8, "float16": 8 * 2**-11}
    asked: list[Asked] = [
        ("node", "cooperative", "gat", {"cooperative": {"wire": wire}})
        for wire in ("exact", *limits)
    ]
    configs, (exact, *rounded) = train_near(asked)
    for values, result, limit in zip(configs[1:], rounded, limits.values(), strict=True):
        assert 1e-6 < distance(values) < limit
        assert result["bytes"]["partial"] * 2 == exact["bytes"]["partial"]


def test_rows_rounded_on_the_wire(train_near: Train) -> None:
    limits = {"int8": 0.1, "bfloat16": 0.05}
    asked: list[Asked] = [
        ("node", engine, "wide sage", {"cluster": {"feature_wire": form}})
        for form, engine in (("stored", "hop"), ("int8", "hop"), ("bfloat16", "model_centric"))
    ]
    configs, (stored, *rounded) = train_near(asked)
    assert rounded[0]["bytes"]["feature"] < 0.7 * stored["bytes"]["feature"]
    for values, (form, limit) in zip(configs[1:], limits.items(), strict=True):
        assert 1e-6 < distance(values) < limit
        summary = json.loads(Path(values["train"]["run_dir"], "summary.json").read_text())
        assert not summary["exact"]
        assert summary["feature_wire"]["form"] == form
        assert 0 < summary["feature_wire"]["error"]["item"]["relative"] < 2**-7


@pytest.mark.parametrize("engine", ["raf", "p3", "cooperative"])
def test_an_engine_that_fetches_no_features_is_exact_whatever_their_wire(engine: str) -> None:
    values = {"data": {"partitioned": "parts"}, "cluster": {"feature_wire": "int8"}}
    config = make_config(values | {"train": {"engine": BASELINES.get(engine, engine)}})
    assert find_engine(config).kind.spec.approximations(config) == []
    told = ENGINE_CLASSES["zero_hop"].spec.approximations(config)
    assert told == ["cluster.feature_wire = int8"]


def test_stored_rows_of_fewer_bits_take_fewer_bytes(
    community_graph: GraphDirectory, train_cases: TrainCases, tmp_path: Path
) -> None:
    """A row of ten numbers takes 40 bytes, 20, or 14 with its scale. Ids and headers stay."""
    case, configs = case_of("node", "model_centric", World(2, 1), 0, "sage"), []
    for dtype in ("float32", "float16", "bfloat16", "int8"):
        options: dict[str, Any] = {"feature_dtypes": [dtype]}
        parts = partition_graph(community_graph, tmp_path / dtype, 2, "random", **options)
        run = {"train": {"evaluate_every": 0, "record_gradients": []}}
        configs.append(merged(case.values(parts, tmp_path / f"run {dtype}"), run))
    results = train_cases(configs, 2, tmp_path)
    full, half, brain, byte = (result["bytes"]["feature"] for result in results)
    rows = results[0]["rows"]["remote_unique"]
    assert all(result["rows"]["remote_unique"] == rows for result in results)
    # Names of dtypes and lengths of messages take a byte or two more or less.
    assert brain == pytest.approx(half, rel=0.01)
    assert full - half == pytest.approx(20 * rows, rel=0.02)
    assert half - byte == pytest.approx(6 * rows, rel=0.02)


def test_float16_keeps_small_gradients_and_notices_infinite_ones(
    community_graph: GraphDirectory, tmp_path: Path
) -> None:
    parts = partition_graph(community_graph, tmp_path / "whole", 1, "random")
    values = case_of("node", "hop", World(1, 1), 0, "sage").values(parts, tmp_path / "run")
    half = {"train": {"dtype": "float32", "autocast": "float16"}}
    request = Request(make_config(merged(values, half)), parts)
    trainer = make_runner(request, RunLog(None), 10**6, torch.device("cpu"))
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
    cpu, x = torch.device("cpu"), torch.randn(3, 4)
    with products_in(torch.bfloat16, cpu):
        product = x @ x.t()
        assert product.dtype == torch.bfloat16
        assert in_full(product).dtype == torch.float32
        assert in_full(x.double()).dtype == torch.float64
    with products_in(None, cpu):
        assert (x @ x.t()).dtype == torch.float32
    # What a user's own model makes of less than float32 is left alone elsewhere.
    assert in_full(x.bfloat16()).dtype == torch.bfloat16
    # Labels are not rounded.
    with products_in(torch.bfloat16, cpu):
        logits, labels = torch.tensor([[2000.0]]), torch.tensor([[2015.0]])
        assert float(Objective("float").loss_sum(logits.bfloat16(), labels)) == 225
