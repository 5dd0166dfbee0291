"""Copies from host memory to a device that overlap with computation.

They go through pinned memory, on a stream of their own. A copy does not wait for kernels that were
launched before it, and the host does not wait for the copy. Kernels that are launched later do.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from hopper.device.array_module import Array


def to_device(array: Tensor | Array, device: torch.device) -> Tensor:
    """Copy a tensor or array to a device. One that is there already keeps its memory."""
    tensor = torch.as_tensor(array)
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    stream = _stream(device)
    with torch.cuda.stream(stream):
        copied = tensor.pin_memory().to(device, non_blocking=True)
    reader = torch.cuda.current_stream(device)
    reader.wait_stream(stream)
    copied.record_stream(reader)
    return copied


def finish_copies(device: torch.device) -> None:
    """Wait until all copies to a device have ended."""
    if device.type == "cuda":
        _stream(device).synchronize()


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
