"""A model in one buffer: parameters and gradients are views of the buffer that migrates."""

from __future__ import annotations

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


def make_net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net().double()


def make_inputs(seed: int) -> torch.Tensor:
    return torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_parameters_and_gradients_are_views_of_one_buffer() -> None:
    module, twin = make_net(), make_net()
    packed = FlatModel(module)
    assert packed.module is module
    for (name, parameter), expected in zip(
        module.named_parameters(), twin.parameters(), strict=True
    ):
        assert torch.equal(parameter, expected), name
    assert torch.equal(module(make_inputs(0)), twin(make_inputs(0)))
    gradients = packed.named_gradients()
    names = ["scale", "first.weight", "first.bias", "second.weight", "second.bias"]
    assert list(gradients) == names
    count = sum(module.get_parameter(name).numel() for name in names)
    assert (packed.parameters.numel(), packed.buffer.numel()) == (count, 2 * count + 1)
    start, stop = packed.buffer.data_ptr(), packed.buffer.data_ptr() + packed.buffer.nbytes
    tensors = [*(module.get_parameter(name) for name in names), *gradients.values()]
    addresses = {tensor.data_ptr() for tensor in tensors}
    assert len(addresses) == 2 * len(names)
    assert start <= min(addresses) <= max(addresses) < stop
    assert [t.shape for t in tensors[:5]] == [t.shape for t in tensors[5:]]
    packed.buffer.fill_(2.0)
    assert all((tensor == 2).all() for tensor in tensors)
    assert (module.frozen == 1).all()
    packed.clear()
    assert not packed.accumulated.any()
    with torch.no_grad():
        module.first.bias.add_(1.0)
    gradients["scale"].fill_(7.0)
    assert packed.parameters.tolist().count(3.0) == 4
    assert 7.0 in packed.gradients.tolist()


def test_a_received_buffer_is_the_model() -> None:
    """One replica computes half of the roots, and another that received its buffer the rest."""
    sender, receiver, twin = make_net(1), make_net(2), make_net(1)
    packed, received = FlatModel(sender), FlatModel(receiver)
    sender(make_inputs(1)).backward()
    packed.loss += 1.25
    received.buffer.copy_(packed.buffer)
    for sent_parameter, received_parameter in zip(
        sender.parameters(), receiver.parameters(), strict=True
    ):
        assert torch.equal(sent_parameter, received_parameter)
    receiver(make_inputs(2)).backward()
    sender(make_inputs(2)).backward()
    (twin(make_inputs(1)) + twin(make_inputs(2))).backward()
    expected = torch.cat([p.grad.flatten() for p in twin.parameters() if p.grad is not None])
    assert packed.gradients.abs().max() > 0
    torch.testing.assert_close(packed.gradients, expected, rtol=1e-13, atol=1e-13)
    assert torch.equal(packed.gradients, received.gradients)
    assert received.loss.item() == 1.25
    # What happens to the copy does not happen to the original.
    received.clear()
    assert packed.gradients.abs().max() > 0


@pytest.mark.parametrize(
    "module", [nn.ReLU(), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())]
)
def test_parameters_of_no_or_of_several_dtypes_are_refused(module: nn.Module) -> None:
    with pytest.raises(ValueError, match="one dtype and device expected"):
        FlatModel(module)
