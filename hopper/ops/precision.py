"""Precision under autocast: matrix products in 16 bits, and sums over edges in float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)


def products_in(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which torch computes float32 products in a dtype; None = no change."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def in_full(x: Tensor) -> Tensor:
    """Return x as float32, if autocast has made a 16-bit tensor of it."""
    return x.float() if x.dtype in HALVES and torch.is_autocast_enabled(x.device.type) else x


def is_finite(x: Tensor) -> bool:
    """Return whether all numbers are finite."""
    # A sum is finite only if all of its terms are, and takes less than a tenth of the time.
    return bool(x.sum().isfinite()) or bool(x.isfinite().all())


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which to compute products of x."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
