"""Converts stored rows of features to floats where they are used."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from cache_server.feature_codec import SCALE_BYTES

_UNREAD: Final = (torch.uint16, torch.int8)
"""The dtypes of stored rows that torch cannot read as numbers directly."""


def to_floats(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert stored rows of any form, or floats, to [n, dim] in a floating dtype.

    Rows of int8 are always multiplied by their scale in float32, so that a row has the same numbers
    in every run (:mod:`cache_server.feature_codec`).
    """
    if rows.dtype == torch.uint16:
        return rows.view(torch.bfloat16).to(dtype)
    if rows.dtype == torch.int8:
        # The copy is aligned for float32.
        scales = rows[:, -SCALE_BYTES:].clone(memory_format=torch.contiguous_format)
        return (rows[:, :-SCALE_BYTES].to(torch.float32) * scales.view(torch.float32)).to(dtype)
    return rows.to(dtype)


def float_width(rows: Tensor) -> int:
    """Return the number of numbers of a stored row."""
    return rows.shape[1] - (SCALE_BYTES if rows.dtype == torch.int8 else 0)


def float_dtype(rows: Tensor) -> torch.dtype:
    """Return the dtype of a stored row's numbers."""
    if rows.dtype not in _UNREAD:
        return rows.dtype
    return torch.bfloat16 if rows.dtype == torch.uint16 else torch.float32
