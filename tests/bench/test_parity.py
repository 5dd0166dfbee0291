"""The parity check finds wrong gradients and losses, and passes those that only round."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from hopper.bench.parity import (
    EngineParity,
    GradientDifference,
    RecordedGradient,
    check_engine,
    compare_gradients,
    compare_losses,
    measure_spread,
    read_recorded,
)
from hopper.config import change_config
from hopper.engines.reference import Reference
from hopper.errors import RequestError
from hopper.models import build_model

from .conftest import CLASSES, DIM

GRADIENTS = {
    "first.weight": torch.tensor([[4.0, -3.0], [0.0, 0.0]]),
    "first.bias": torch.tensor([3e-3, 4e-3]),
}


def change_gradient(name: str, by: Tensor) -> dict[str, Tensor]:
    return GRADIENTS | {name: GRADIENTS[name] + by}


def test_gradients_are_compared_by_entry_and_by_tensor():
    wrong = change_gradient("first.bias", torch.tensor([0.0, 5e-4]))
    difference = compare_gradients(0, wrong, GRADIENTS, 0.5, 0.4)
    # Small against the largest entry, 10 % of its own tensor's norm.
    assert difference.overall == pytest.approx(5e-4 / 4, rel=1e-4)
    assert difference.by_tensor["first.bias"] == pytest.approx(0.1, rel=1e-4)
    assert difference.by_tensor["first.weight"] == 0.0
    assert difference.largest == pytest.approx(0.1, rel=1e-4)
    assert difference.loss == pytest.approx(0.25)


def test_negligible_tensors_are_judged_by_the_overall_measure_only():
    tiny = GRADIENTS | {"first.bias": torch.tensor([3e-6, 0.0])}
    wrong = tiny | {"first.bias": torch.tensor([6e-6, 0.0])}
    difference = compare_gradients(0, wrong, tiny, 1.0, 1.0)
    assert list(difference.by_tensor) == ["first.weight"]
    assert difference.overall == pytest.approx(3e-6 / 4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("side", ["engine", "reference"])
def test_gradients_with_nan_or_infinity_never_pass(bad, side):
    broken = change_gradient("first.bias", torch.tensor([bad, 0.0]))
    pair = (broken, GRADIENTS) if side == "engine" else (GRADIENTS, broken)
    difference = compare_gradients(0, *pair, 1.0, 1.0)
    assert not difference.largest <= 1e-5
    parity = EngineParity("hop", "float32", (difference,), 0.0)
    assert len(parity.problems) == 1
    assert "hop: gradients differ by" in parity.problems[0]


def test_a_loss_that_is_not_a_number_never_passes():
    difference = compare_gradients(0, GRADIENTS, GRADIENTS, math.nan, 1.0)
    assert (difference.overall, difference.largest) == (0.0, 0.0)
    parity = EngineParity("hop", "float32", (difference,), 0.0)
    assert "losses differ by nan" in parity.problems[0]
    assert EngineParity("hop", "float64", (), math.nan).problems


def test_a_vanished_gradient_is_found():
    zeros = {name: torch.zeros_like(value) for name, value in GRADIENTS.items()}
    assert compare_gradients(0, zeros, GRADIENTS, 1.0, 1.0).largest == pytest.approx(1.0)
    assert compare_gradients(0, GRADIENTS, zeros, 1.0, 1.0).largest == math.inf
    assert compare_gradients(0, zeros, zeros, 1.0, 1.0).largest == 0.0


def test_other_parameters_are_refused():
    with pytest.raises(RequestError, match="different parameters"):
        compare_gradients(0, {"first.bias": GRADIENTS["first.bias"]}, GRADIENTS, 1.0, 1.0)
    with pytest.raises(RequestError, match="different parameters"):
        compare_gradients(0, GRADIENTS | {"first.bias": torch.ones(3)}, GRADIENTS, 1.0, 1.0)


def test_losses_are_compared_as_far_as_rounding_allows():
    losses = [1.0] * 60
    late = [*losses[:55], 2.0, *losses[56:]]
    early = [1.0, 1.5, *losses[2:]]
    assert compare_losses(late, losses, "float32") == 0.0
    assert compare_losses(late, losses, "float64") == pytest.approx(1.0)
    assert compare_losses(early, losses, "float32") == pytest.approx(0.5)
    assert compare_losses(losses[:-1], losses, "float32") == math.inf
    assert math.isnan(compare_losses([math.nan], [1.0], "float32"))


def test_limits_depend_on_the_dtype():
    wrong = change_gradient("first.weight", torch.tensor(4e-7))
    difference = compare_gradients(0, wrong, GRADIENTS, 1.0, 1.0)
    assert not EngineParity("hop", "float32", (difference,), 0.0).problems
    assert EngineParity("hop", "float64", (difference,), 0.0).problems


@pytest.mark.parametrize(
    ("size", "in_float64", "problem"),
    [
        (3e-5, None, ""),
        (3e-3, None, ""),
        (3e-3, 1e-13, ""),
        (3.9e-2, 1e-13, ""),
        (8e-3, None, "gradients differ by 0.002, limit 0.001 in float32"),
        (8e-2, 1e-13, "gradients differ by 0.02, limit 0.01 in float32"),
        (3e-3, 1e-6, "gradients differ by 1e-06, limit 1e-10 in float64"),
        (3e-3, math.nan, "gradients differ by nan, limit 1e-10 in float64"),
        (math.nan, 1e-13, "gradients differ by nan, limit 0.01 in float32"),
    ],
)
def test_float64_decides_where_float32_cannot(size, in_float64, problem):
    wrong = GRADIENTS | {"first.weight": torch.tensor([[4.0, -3.0 + size], [0.0, 0.0]])}
    difference = compare_gradients(0, wrong, GRADIENTS, 1.0, 1.0)
    parity = EngineParity("hop", "float32", (difference,), 0.0)
    assert parity.needs_float64 == (not size <= 3e-5)
    assert not replace(parity, dtype="float64").needs_float64
    assert not replace(parity, judged=False).needs_float64
    if in_float64 is not None:
        again = GradientDifference(0, in_float64, {}, 0.0)
        parity = replace(parity, in_float64=EngineParity("hop", "float64", (again,), 0.0))
    assert parity.problems == ([f"hop: {problem}"] if problem else [])


@pytest.mark.parametrize("exact", [1e-12, 1e-6, None])
def test_losses_are_judged_as_gradients_are(exact):
    again = exact and EngineParity("hop", "float64", (), exact)
    parity = EngineParity("hop", "float32", (), 1.6e-3, in_float64=again or None)
    assert parity.needs_float64
    assert bool(parity.problems) == (exact != 1e-12)


def test_engines_that_round_on_purpose_have_to_be_near():
    changed = [change_gradient("first.weight", torch.tensor(by)) for by in (0.1, 3.0)]
    near = compare_gradients(0, changed[0], GRADIENTS, 1.01, 1.0)
    far = compare_gradients(0, changed[1], GRADIENTS, 1.5, 1.0)
    assert EngineParity("c", "float32", (near,), 0.0, judged=False).problems == []
    assert len(EngineParity("c", "float32", (far,), 0.0, judged=False).problems) == 2
    broken = compare_gradients(0, GRADIENTS, GRADIENTS, math.nan, 1.0)
    assert "nan" in EngineParity("c", "float32", (broken,), math.nan, judged=False).problems[0]


def test_the_spread_of_one_process_shows_gates_that_rounding_opens(tiny_config, tiny_graph):
    config = change_config(tiny_config, model={"dropout": 0.0})
    exact_config = change_config(config, train={"dtype": "float64"})
    rounded, exact = (Reference(each, tiny_graph, 2) for each in (config, exact_config))
    module = rounded._packed.module
    parameters = {name: value.detach().clone() for name, value in module.named_parameters()}
    moment = RecordedGradient(Path(), 0, 0, 0, 0.0, parameters, {})
    assert 1e-9 < measure_spread(rounded, moment) < 1e-5
    rows: list[Tensor] = []
    module.layers[0].register_forward_hook(lambda _, __, output: rows.append(output.detach()))
    rounded.gradient(0, 0, parameters)
    bias = parameters["layers.0.self_linear.bias"]
    spreads = []
    # The input of one gate of every unit becomes zero, up to rounding.
    for opened in torch.where(rows[0] > 0, rows[0], torch.inf).sort(0).values[:5]:
        parameters["layers.0.self_linear.bias"] = bias - opened.nan_to_num(posinf=0.0)
        spreads.append(measure_spread(rounded, moment))
        assert measure_spread(exact, moment) < 1e-12
    assert max(spreads) > 1e-4, spreads


Record = Callable[..., Path]


@pytest.fixture
def reference(tiny_config, tiny_graph) -> Reference:
    return Reference(tiny_config, tiny_graph, 2)


@pytest.fixture
def record(reference, tiny_config, tmp_path) -> Record:
    """Return a function that changes an iteration's right gradient and writes it as rank 0 does."""

    def write(step: int, iteration: int, change: Callable[[Tensor], Tensor]) -> Path:
        model, dims = tiny_config.model, {"in_dim": DIM, "out_dim": CLASSES}
        sizes = {"layers": model.layers, "hidden": model.hidden}
        module = build_model(model.name, seed=step, **sizes, **dims)
        parameters = {name: value.detach() for name, value in module.named_parameters()}
        loss, gradients = reference.gradient(0, iteration, parameters)
        first = next(iter(gradients))
        gradients[first] = change(gradients[first])
        tensors = {f"model.{name}": value for name, value in parameters.items()}
        tensors |= {f"gradient.{name}": value for name, value in gradients.items()}
        facts = {"epoch": 0, "iteration": iteration, "loss": loss}
        path = tmp_path / f"step-{step}.safetensors"
        save_file(tensors, str(path), metadata={"facts": json.dumps(facts)})
        return tmp_path

    return write


def test_right_gradients_pass(reference, record):
    record(10, 1, lambda gradient: gradient)
    folder = record(2, 2, lambda gradient: gradient)
    recorded = read_recorded(folder)
    assert [moment.step for moment in recorded] == [2, 10]
    parity = check_engine("hop", "float32", reference, recorded)
    assert parity.problems == []
    assert parity.gradient_difference < 1e-6


def test_one_wrong_gradient_of_two_is_found(reference, record):
    record(0, 0, lambda gradient: gradient)
    folder = record(1, 1, lambda gradient: gradient * 1.001)
    parity = check_engine("hop", "float32", reference, read_recorded(folder))
    assert len(parity.problems) == 1
    assert "hop: gradients differ by 0.00" in parity.problems[0]


def test_files_that_are_not_recorded_gradients_are_refused(tmp_path, reference):
    with pytest.raises(RequestError, match="found none"):
        read_recorded(tmp_path)
    with pytest.raises(RequestError, match="no gradient was recorded"):
        check_engine("hop", "float32", reference, [])
    (tmp_path / "step-0.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(RequestError, match=r"step-0\.safetensors: not a recorded gradient"):
        read_recorded(tmp_path)
