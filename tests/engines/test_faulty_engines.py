"""What engines are compared with, and the small faults in them that comparisons find.

The A/B and test_conformance.py refuse every one of the faults, and nothing else.
"""

from typing import Any

import pytest
import torch
from faulty_engines import FAULTS

from hopper.bench.parity import EngineParity, check_engine, compare_losses, read_recorded
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.engines.reference import Reference
from hopper.errors import RequestError

from .conftest import Run, assert_exact
from .features import World, case_of

ENGINES = {"sent": "FaultyCooperative", "sum": "FaultyHop", "update": "FaultyHop"}
CASES = [
    *((ENGINES.get(fault.stage, "FaultyZeroHop"), name) for name, fault in FAULTS.items()),
    *(("FaultyCooperative", name) for name in ("none", "one tensor off by 1e-6")),
    ("FaultyHop", "none"),
]
CASE = case_of("node", "zero_hop in passes", World(2, 1), 0, "wide sage")


def test_every_small_fault_is_refused_and_nothing_else(train, divided):
    shared = {"batch_size": 13, "micro_batch": 0, "iterations_per_epoch": 3, "evaluate_every": 0}
    shared |= {"record_gradients": [0, 1, 2]}
    asked: list[Any] = []
    for number, (engine, name) in enumerate(CASES):
        options = {"engine_options": {"fault": name, "seed": number}}
        own = {"engine": f"faulty_engines:{engine}"} | options
        asked.append((CASE, {"model": {"hidden": 6}, "train": shared | own}))
    runs = train(asked)
    reference = Reference(make_config(runs[0].values), divided(CASE), 2)
    for (engine, name), run in zip(CASES, runs, strict=True):
        recorded = read_recorded(run.folder / "gradients")
        parity = check_engine(f"{engine}: {name}", "float64", reference, recorded)
        curve = compare_losses(run.result["losses"], runs[0].result["losses"], "float64")
        verdict = EngineParity(parity.engine, "float64", parity.gradients, curve)
        is_right = name == "none"
        assert bool(verdict.problems) != is_right, verdict
        assert conforms(run, runs[0]) == is_right, verdict
        if (engine, name) == ("FaultyHop", "one tensor off by 1e-6"):
            assert parity.gradient_difference < 1.1e-6


def conforms(run: Run, right: Run) -> bool:
    """Return whether a run has the gradients of one process, and the losses of other engines."""
    try:
        assert_exact(run.values, 2, in_other_orders=False)
        assert run.result["losses"] == pytest.approx(right.result["losses"], rel=1e-9)
    except AssertionError:
        return False
    return True


def test_one_process_computes_the_derivative_of_the_loss(divided, tmp_path):
    """Epochs differ, and an iteration can be computed again."""
    parts = divided(CASE)
    config = make_config(CASE.values(parts, tmp_path))
    reference, model = Reference(config, parts, 2), make_model(Request(config, parts))
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    loss, gradients = reference.gradient(0, 0, parameters)
    generator, step = torch.Generator().manual_seed(0), 1e-6
    direction = {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in parameters.items()
    }
    losses = [
        reference.gradient(0, 0, {n: value + s * direction[n] for n, value in parameters.items()})
        for s in (step, -step)
    ]
    slope = sum(float((gradients[name] * direction[name]).sum()) for name in parameters)
    assert (losses[0][0] - losses[1][0]) / (2 * step) == pytest.approx(slope, rel=1e-5)
    assert reference.gradient(1, 0, parameters)[0] != loss
    again = reference.gradient(0, 0, parameters)
    assert again[0] == loss
    assert all(torch.equal(again[1][name], value) for name, value in gradients.items())
    with pytest.raises(RequestError, match="parameters of another model"):
        reference.gradient(0, 0, dict(list(parameters.items())[1:]))
