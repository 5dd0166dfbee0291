"""Copies to a device: what arrives, and when."""

from __future__ import annotations

import pytest
import torch

from hopper.device_copies import finish_copies, to_device

_CYCLES = 1_000_000_000
"""half a second of a GPU's"""


@pytest.mark.parametrize(
    "found",
    [
        torch.arange(7),
        torch.ones(3, 2, dtype=torch.float16),
        torch.empty(0, 4),
        torch.arange(12.0).view(3, 4)[:, 1:3],
        torch.tensor(2.5, dtype=torch.float64),
    ],
    ids=["ids", "half", "none", "view", "scalar"],
)
def test_copies_arrive(device: torch.device, found: torch.Tensor) -> None:
    """Of any shape and dtype; what is there already is no copy."""
    sent = to_device(found, device)
    finish_copies(device)
    assert sent.device.type == device.type
    assert (sent.dtype, sent.shape) == (found.dtype, found.shape)
    assert torch.equal(sent.cpu(), found)
    assert to_device(sent, device) is sent


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_copies_are_ahead_of_the_compute() -> None:
    """One that is asked for while kernels run is there before they end; those after it read it."""
    device = torch.device("cuda", 0)
    found = torch.arange(1 << 20)
    compute = torch.cuda.current_stream(device)
    to_device(found, device)
    torch.cuda.synchronize(device)
    torch.cuda._sleep(_CYCLES)
    sent = to_device(found, device)
    finish_copies(device)
    assert not compute.query()
    assert int(sent.sum()) == int(found.sum())
