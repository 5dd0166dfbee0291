"""Rows of features become floats where they are computed with."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from cache_server.row_form import SCALE_BYTES

_UNREAD: Final = (torch.uint16, torch.int8)
"""of stored rows whose numbers are no tensor's own"""


def to_floats(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """[n, dim] in a floating dtype: stored rows, in whichever form, or what are floats already.

    Rows of int8 are multiplied with their scale in float32 whatever the dtype, so that a row is the
    same numbers in every run (:mod:`cache_server.row_form`).
    """
    if rows.dtype == torch.uint16:
        return rows.view(torch.bfloat16).to(dtype)
    if rows.dtype == torch.int8:
        # A copy, whose bytes stand where a float32 may.
        scales = rows[:, -SCALE_BYTES:].clone(memory_format=torch.contiguous_format)
        return (rows[:, :-SCALE_BYTES].to(torch.float32) * scales.view(torch.float32)).to(dtype)
    return rows.to(dtype)


def float_width(rows: Tensor) -> int:
    """How many numbers a stored row has."""
    return rows.shape[1] - (SCALE_BYTES if rows.dtype == torch.int8 else 0)


def float_dtype(rows: Tensor) -> torch.dtype:
    """The dtype of a stored row's numbers."""
    if rows.dtype not in _UNREAD:
        return rows.dtype
    return torch.bfloat16 if rows.dtype == torch.uint16 else torch.float32
