"""Numbers of fewer bits, in products, on the wire or stored, and numbers that are not finite.

Guards against: rounding where nobody asked for it, ranks that disagree on an update that is left
out, learnable rows or parameters of one server that are updated all the same, and loss scales that
differ from torch's.
"""

import json
import statistics
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
from hopper.migrate.flat_model import FlatModel, LossScale
from hopper.models import Objective
from hopper.ops import in_full, products_in
from hopper.timing.run_log import RunLog

from .conftest import Run, Train
from .features import Case, Sections, World, case_of, merged
from .graphs import MODELS
from .parity_rank import open_once

TWO = World(2, 1)
SINGLE: Sections = {"train": {"dtype": "float32", "evaluate_every": 0, "batch_size": 16}}
# Where one ReLU of few roots opens that did not, more is lost than rounding loses.
LIMIT = 0.3
# Eight bits of a number are kept, or eleven.
MEDIANS = {"bfloat16": 0.02, "float16": 0.004}
HALVES = list(MEDIANS)
ITERATIONS = 4


def distance(values: dict[str, Any]) -> float:
    """How far the first gradient is from the exact one."""
    config = make_config(values)
    recorded = read_recorded(Path(config.train.run_dir) / "gradients")
    reference = Reference(config, open_once(config), 2)
    parity = check_engine(config.train.engine, "float32", reference, recorded[:1])
    return parity.gradients[0].overall


@pytest.mark.parametrize("half", HALVES)
def test_gradients_with_products_in_half_the_bits(half, train):
    """Rounding depends on the model, and on how an engine divides a layer.

    So engines that divide layers meet every model, with one of the dtypes. Engines that train whole
    layers share the models. One run that is scored shows that runs can be.
    """
    turn, chosen = HALVES.index(half), list[tuple[str, str, str]]()
    for number, model in enumerate(("gcn", "sage", "gat", "deepgcn", "film")):
        engine = ("cooperative", "naive")[turn] if number % 2 == turn else "p3"
        chosen.append(("node", engine, model))
    for number, model in enumerate(MODELS):
        if number % 3 == turn:
            chosen.append(("types, learned rows", "raf", model))
        elif number % 3 == turn + 1:
            chosen.append(("types, learned rows", ("hop", "cooperative")[turn], model))
    first = {"autocast": half, "iterations_per_epoch": 1, "record_gradients": [0]}
    asked = [
        (
            case_of(feature, engine, TWO, 0, model),
            merged(SINGLE, {"train": first | {"evaluate_every": int(not number)}}),
        )
        for number, (feature, engine, model) in enumerate(chosen)
    ]
    distances = []
    for run in train(asked):
        config = make_config(run.values)
        spec = find_engine(config).kind.spec
        assert spec.approximations(config) == [f"train.autocast = {half}"]
        distances.append(distance(run.values))
    assert all(1e-5 < far < LIMIT for far in distances), distances
    assert statistics.median(distances) < MEDIANS[half]


def train_each(train: Train, model: str, asked: list[tuple[str, Sections]]) -> list[Run]:
    """Train a model in float32 under engines."""
    return train(
        [(case_of("node", name, TWO, 0, model), merged(SINGLE, more)) for name, more in asked]
    )


def test_partial_sums_rounded_on_the_wire(train):
    # Eight times the dtype's relative rounding: several roundings add up on the way.
    limits = {"bfloat16": 8 * 2**-8, "float16": 8 * 2**-11}
    wires = [{"cooperative": {"wire": wire}} for wire in ("exact", *limits)]
    exact, *rounded = train_each(train, "gat", [("cooperative", wire) for wire in wires])
    for run, limit in zip(rounded, limits.values(), strict=True):
        assert 1e-6 < distance(run.values) < limit
        assert run.result["bytes"]["partial"] * 2 == exact.result["bytes"]["partial"]


def test_rows_rounded_on_the_wire(train):
    limits = {"int8": 0.1, "bfloat16": 0.05}
    engines = (("stored", "hop"), ("int8", "hop"), ("bfloat16", "model_centric"))
    asked = [(engine, {"cluster": {"feature_wire": form}}) for form, engine in engines]
    stored, *rounded = train_each(train, "wide sage", asked)
    bytes_ = [run.result["bytes"]["feature"] for run in (stored, *rounded)]
    assert bytes_[1] < 0.7 * bytes_[0]
    for run, (form, limit) in zip(rounded, limits.items(), strict=True):
        assert 1e-6 < distance(run.values) < limit
        summary = json.loads((run.folder / "summary.json").read_text())
        assert not summary["exact"]
        assert summary["feature_wire"]["form"] == form
        assert 0 < summary["feature_wire"]["error"]["item"]["relative"] < 2**-7


@pytest.mark.parametrize("engine", ["raf", "p3", "cooperative"])
def test_an_engine_that_fetches_no_features_is_exact_whatever_their_wire(engine):
    values = {"data": {"partitioned": "parts"}, "cluster": {"feature_wire": "int8"}}
    config = make_config(values | {"train": {"engine": BASELINES.get(engine, engine)}})
    assert find_engine(config).kind.spec.approximations(config) == []
    told = ENGINE_CLASSES["zero_hop"].spec.approximations(config)
    assert told == ["cluster.feature_wire = int8"]


def test_float16_keeps_small_gradients_and_notices_infinite_ones(divided, tmp_path):
    case = case_of("node", "hop", World(1, 1), 0, "sage")
    half = {"train": {"dtype": "float32", "autocast": "float16"}}
    parts = divided(case)
    request = Request(make_config(merged(case.values(parts, tmp_path), half)), parts)
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


def test_products_are_in_half_precision_and_the_rest_in_full():
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


def test_every_engine_leaves_out_the_same_update_on_all_ranks(train):
    """The loss is NaN once on rank 1. All later gradients are those of one process."""
    once = {"on_nonfinite": "skip", "gradient_norms": True, "iterations_per_epoch": ITERATIONS}
    once |= {"loss": "own_parts:NanOnce", "loss_options": {"rank": 1, "call": 2}}
    once |= {"batch_size": 4, "record_gradients": [*range(ITERATIONS)], "evaluate_every": 0}
    cases: list[Case] = [
        case_of("types, learned rows", engine, TWO, 0, "rgcn")
        for engine in ("model_centric", "hop", "cooperative", "raf")
    ]
    cases.append(case_of("node", "p3", TWO, 0, "wide sage"))
    for run in train([(case, {"train": once}) for case in cases]):
        config = make_config(run.values)
        (epoch,) = [
            json.loads(line, parse_constant=pytest.fail)
            for line in (run.folder / "epochs.jsonl").read_text().splitlines()
        ]
        losses = epoch["iteration_losses"]
        number = losses.index("nan")
        assert [losses.count("nan"), epoch["left_out"]] == [1, 1], config.train.engine
        assert epoch["gradient_norms"][number] == "nan"
        finite = [loss for loss in losses if loss != "nan"]
        assert epoch["loss"] == pytest.approx(sum(finite) / len(finite))
        recorded = read_recorded(run.folder / "gradients")
        for name, parameter in recorded[number].parameters.items():
            if not name.startswith("learnable."):
                assert torch.equal(parameter, recorded[number + 1].parameters[name])
        reference = Reference(config, open_once(config), 2)
        later = [gradient for gradient in recorded if gradient.step != number]
        parity = check_engine(config.train.engine, "float64", reference, later)
        assert max(gradient.largest for gradient in parity.gradients) < 1e-10


def test_the_loss_scale_is_that_of_torch():
    ours, theirs = LossScale(is_on=True), torch.amp.GradScaler("cpu", init_scale=1024)
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter])
    generator = torch.Generator().manual_seed(0)
    factors = []
    for step in range(9000):
        is_finite = step > 3000 or float(torch.rand(1, generator=generator)) > 0.002
        parameter.grad = torch.tensor([1.0 if is_finite else torch.inf])
        theirs.scale(torch.zeros(1))
        theirs.unscale_(optimizer)
        theirs.update()
        ours.update(is_finite)
        assert ours.factor == theirs.get_scale(), step
        factors.append(ours.factor)
    assert 1.0 < min(factors) < factors[-1]
