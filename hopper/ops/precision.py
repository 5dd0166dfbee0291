"""Matrix products in half the bits, and everything that is added up over edges in full."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)


def products_in(
    dtype: torch.dtype | None, device: torch.device
) -> contextlib.AbstractContextManager[None]:
    """Within it torch computes matrix products of float32 in another dtype; None = as they are."""
    return contextlib.nullcontext() if dtype is None else _autocast(dtype, device)


@contextlib.contextmanager
def _autocast(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    with torch.autocast(device.type, dtype):
        yield


def in_full(x: Tensor) -> Tensor:
    """x as float32, where autocast has made less of it."""
    return x.float() if x.dtype in HALVES and torch.is_autocast_enabled(x.device.type) else x


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype that products of x are to be computed in."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
