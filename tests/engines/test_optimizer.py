"""Hopper's optimisers make the same updates as torch's."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from hopper.engines.optimizer import Adam, AdamW, Optimizer, Sgd, UpdateRule
from hopper.migrate.flat_model import FlatModel

KINDS = {Adam: torch.optim.Adam, AdamW: torch.optim.AdamW, Sgd: torch.optim.SGD}


def make_module() -> nn.Module:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    module[0].bias.requires_grad_(False)
    return module


def optimizer_of(kind: type[UpdateRule], packed: FlatModel, weight_decay: float) -> Optimizer:
    rule = kind(packed.parameters, weight_decay=weight_decay)
    return Optimizer(packed, rule, learning_rate=0.05)


def fill_gradients(packed: FlatModel, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    packed.gradients.copy_(torch.randn(packed.gradients.shape, generator=generator).double())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_updates_equal_torch(kind: type[UpdateRule], weight_decay: float) -> None:
    hopper_model, torch_model = FlatModel(make_module()), FlatModel(make_module())
    optimizer = optimizer_of(kind, hopper_model, weight_decay)
    trained = [p for p in torch_model.module.parameters() if p.requires_grad]
    expected = KINDS[kind](trained, lr=0.05, weight_decay=weight_decay)
    start = hopper_model.parameters.clone()
    for step in range(30):
        for packed in (hopper_model, torch_model):
            fill_gradients(packed, step)
        before = hopper_model.gradients.clone()
        optimizer.step()
        expected.step()
        assert torch.equal(hopper_model.gradients, before)
    torch.testing.assert_close(
        hopper_model.parameters, torch_model.parameters, rtol=1e-13, atol=1e-13
    )
    assert (hopper_model.parameters - start).abs().min() > 1e-4
    assert torch.equal(hopper_model.module[0].bias, make_module()[0].bias)


@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_optimizer_goes_on_bit_for_bit(kind: type[UpdateRule]) -> None:
    first = FlatModel(make_module())
    first_optimizer = optimizer_of(kind, first, 0.1)
    for step in range(5):
        fill_gradients(first, step)
        first_optimizer.step()
    second = FlatModel(copy.deepcopy(first.module))
    second_optimizer = optimizer_of(kind, second, 0.1)
    saved, restored = first_optimizer.state(), second_optimizer.state()
    assert saved.keys() == restored.keys()
    for name, tensor in saved.items():
        restored[name].copy_(tensor)
    for step in range(5, 8):
        for packed, optimizer in ((first, first_optimizer), (second, second_optimizer)):
            fill_gradients(packed, step)
            optimizer.step()
        assert torch.equal(first.parameters, second.parameters)


def test_a_rank_starts_without_the_compiler() -> None:
    """torch's compiler takes as long to import as torch itself, on every rank."""
    script = (
        "import sys, torch; from torch import nn\n"
        "from hopper.train import rank\n"
        "from hopper.engines.optimizer import Adam, Optimizer\n"
        "from hopper.migrate.flat_model import FlatModel\n"
        "rank.make_deterministic()\n"
        "assert torch.are_deterministic_algorithms_enabled()\n"
        "packed = FlatModel(nn.Linear(2, 2))\n"
        "Optimizer(packed, Adam(packed.parameters), learning_rate=0.1).step()\n"
        "loaded = {'torch._dynamo', 'torch._inductor', 'sympy', 'matplotlib'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
