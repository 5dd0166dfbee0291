"""A model in one buffer: parameters and gradients are views of the buffer that migrates."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hopper.migrate.flat_model import FlatModel


class Net(nn.Module):
    """Parameters of several ranks, one tied twice, one frozen, one scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 4)
        self.tied = self.second
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.second(torch.tanh(self.first(x)) * self.frozen)
        return (self.tied(hidden) * self.scale).sum()


def pack_model(seed: int = 0) -> tuple[Net, FlatModel]:
    torch.manual_seed(seed)
    module = Net().double()
    return module, FlatModel(module)


def make_inputs(seed: int) -> torch.Tensor:
    return torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_packing_changes_no_value_and_no_result() -> None:
    torch.manual_seed(3)
    module = Net().double()
    twin = copy.deepcopy(module)
    packed = FlatModel(module)
    for (name, parameter), (_, expected) in zip(
        module.named_parameters(), twin.named_parameters(), strict=True
    ):
        assert torch.equal(parameter, expected), name
    assert torch.equal(module(make_inputs(0)), twin(make_inputs(0)))
    assert packed.module is module


def test_parameters_and_gradients_are_views() -> None:
    module, packed = pack_model()
    start, stop = packed.buffer.data_ptr(), packed.buffer.data_ptr() + packed.buffer.nbytes
    addresses = set()
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            for tensor in (parameter, parameter.grad):
                assert start <= tensor.data_ptr() < stop, name
                addresses.add(tensor.data_ptr())
    assert len(addresses) == 2 * len(packed.named_gradients())
    count = sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert (packed.parameters.numel(), packed.buffer.numel()) == (count, 2 * count + 1)
    packed.buffer.fill_(2.0)
    assert (packed.accumulated == 2).all()
    assert (module.first.weight == 2).all()
    assert (module.first.bias.grad == 2).all()
    assert (module.frozen == 1).all()
    packed.clear()
    assert not packed.accumulated.any()
    assert (packed.parameters == 2).all()


def test_backward_accumulates_into_the_buffer() -> None:
    module, packed = pack_model()
    twin = copy.deepcopy(module)
    for seed in (1, 2):
        module(make_inputs(seed)).backward()
    (twin(make_inputs(1)) + twin(make_inputs(2))).backward()
    # deepcopy keeps .grad of leaves; the twin's started from zero like the module's.
    expected = torch.cat([p.grad.flatten() for p in twin.parameters() if p.requires_grad])
    assert packed.gradients.abs().max() > 0
    torch.testing.assert_close(packed.gradients, expected, rtol=1e-13, atol=1e-13)


def test_a_received_buffer_is_the_model() -> None:
    """One replica computes half of the roots, and another that received its buffer the rest."""
    sender, packed = pack_model(seed=1)
    receiver, received = pack_model(seed=2)
    sender(make_inputs(1)).backward()
    packed.loss += 1.25
    received.buffer.copy_(packed.buffer)
    for sent_parameter, received_parameter in zip(
        sender.parameters(), receiver.parameters(), strict=True
    ):
        assert torch.equal(sent_parameter, received_parameter)
    receiver(make_inputs(2)).backward()
    sender(make_inputs(2)).backward()
    assert torch.equal(packed.gradients, received.gradients)
    assert received.loss.item() == 1.25
    # What happens to the copy does not happen to the original.
    received.clear()
    assert packed.gradients.abs().max() > 0


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimiser_updates_the_buffer(kind: type[torch.optim.Optimizer]) -> None:
    module, packed = pack_model()
    optimizer = kind([p for p in module.parameters() if p.requires_grad], lr=0.1)
    parameters_before = packed.parameters.clone()
    module(make_inputs(0)).backward()
    optimizer.step()
    assert not torch.equal(packed.parameters, parameters_before)
    parameters_now = torch.cat(
        [p.detach().flatten() for p in module.parameters() if p.requires_grad]
    )
    assert torch.equal(packed.parameters, parameters_now)


def test_named_gradients() -> None:
    module, packed = pack_model()
    gradients = packed.named_gradients()
    assert list(gradients) == [
        "scale",
        "first.weight",
        "first.bias",
        "second.weight",
        "second.bias",
    ]
    for name, gradient in gradients.items():
        assert gradient.shape == module.get_parameter(name).shape
    gradients["scale"].fill_(7.0)
    assert 7.0 in packed.gradients.tolist()


@pytest.mark.parametrize(
    "module", [nn.ReLU(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())]
)
def test_parameters_of_no_or_of_several_dtypes_are_refused(module: nn.Module) -> None:
    with pytest.raises(ValueError, match="one dtype and device expected"):
        FlatModel(module)
