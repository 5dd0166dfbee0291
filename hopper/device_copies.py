"""Copies from host memory to a device, ahead of what computes there.

They go through pinned memory, on a stream of their own. Neither do they wait for kernels that were
launched before, nor the host for them; kernels that are launched later wait for the copy.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from hopper.array_module import Array


def to_device(array: Tensor | Array, device: torch.device) -> Tensor:
    """[...]: a tensor or array on a device; the same memory where it is there already."""
    found = torch.as_tensor(array)
    if device.type != "cuda" or found.device.type != "cpu":
        return found.to(device)
    stream = _stream(device)
    with torch.cuda.stream(stream):
        sent = found.pin_memory().to(device, non_blocking=True)
    reader = torch.cuda.current_stream(device)
    reader.wait_stream(stream)
    sent.record_stream(reader)
    return sent


def finish_copies(device: torch.device) -> None:
    """Wait until all of them are there."""
    if device.type == "cuda":
        _stream(device).synchronize()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
