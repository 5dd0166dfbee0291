"""Copies to a device: their values, and that they do not wait for running kernels."""

import pytest
import torch

from hopper.device.copies import finish_copies, to_device

_CYCLES = 1_000_000_000
"""cycles of half a second on a GPU"""


@pytest.mark.parametrize(
    "source",
    [
        torch.arange(7),
        torch.ones(3, 2, dtype=torch.float16),
        torch.empty(0, 4),
        torch.arange(12.0).view(3, 4)[:, 1:3],
        torch.tensor(2.5, dtype=torch.float64),
    ],
    ids=["ids", "half", "none", "view", "scalar"],
)
def test_copies_arrive(device, source):
    """Tensors of any shape and dtype are copied. One that is on the device already is returned."""
    copy = to_device(source, device)
    finish_copies(device)
    assert copy.device.type == device.type
    assert (copy.dtype, copy.shape) == (source.dtype, source.shape)
    assert torch.equal(copy.cpu(), source)
    assert to_device(copy, device) is copy


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_copies_do_not_wait_for_running_kernels():
    """A copy arrives before the kernels that run meanwhile end, and later kernels read it."""
    device = torch.device("cuda", 0)
    source = torch.arange(1 << 20)
    compute = torch.cuda.current_stream(device)
    to_device(source, device)
    torch.cuda.synchronize(device)
    torch.cuda._sleep(_CYCLES)
    copy = to_device(source, device)
    finish_copies(device)
    assert not compute.query()
    assert int(copy.sum()) == int(source.sum())
