"""The forms in which rows of numbers are stored and sent: 32, 16 or 8 bits a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest

RowFormName = Literal["float32", "float16", "bfloat16", "int8"]
SCALE_BYTES: Final = 4
"""bytes of the float32 scale of an int8 row, which follows its numbers"""
_LARGEST: Final = np.float32(127)
_UPPER_HALF: Final = np.uint32(16)


@dataclass(frozen=True)
class RowForm:
    """A form of stored rows."""

    name: RowFormName
    dtype: np.dtype[Any]
    more: int
    encode: Callable[[NDArray[np.float32]], NDArray[Any]]
    decode: Callable[[NDArray[Any]], NDArray[np.float32]]

    def columns(self, dim: int) -> int:
        """Return the number of columns of a table with ``dim`` numbers a row."""
        return dim + self.more

    def row_bytes(self, dim: int) -> int:
        """Return the size in bytes of a row of ``dim`` numbers."""
        return self.columns(dim) * self.dtype.itemsize


def _as_float32(rows: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray(rows).astype(np.float32)


def _to_float16(rows: NDArray[np.float32]) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        return rows.astype(np.float16)


def _to_bfloat16(rows: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round to the nearest bfloat16, and to the even one of two that are equally near."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    is_odd = (bits >> _UPPER_HALF) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + is_odd) >> _UPPER_HALF).astype(np.uint16)


def _from_bfloat16(rows: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (np.asarray(rows).astype(np.uint32) << _UPPER_HALF).view(np.float32)


def _to_int8(rows: NDArray[np.float32]) -> NDArray[np.int8]:
    scales = np.abs(rows).max(1, initial=0, keepdims=True).astype(np.float32) / _LARGEST
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        numbers = np.where(scales > 0, np.rint(rows / scales), np.float32(0))
    out = np.empty((len(rows), rows.shape[1] + SCALE_BYTES), np.int8)
    out[:, :-SCALE_BYTES] = np.clip(numbers, -_LARGEST, _LARGEST)
    out[:, -SCALE_BYTES:] = scales.view(np.int8)
    return out


def _from_int8(rows: NDArray[np.int8]) -> NDArray[np.float32]:
    scales = np.ascontiguousarray(rows[:, -SCALE_BYTES:]).view(np.float32)
    floats: NDArray[np.float32] = rows[:, :-SCALE_BYTES].astype(np.float32) * scales
    return floats


ROW_FORMS: Final[Mapping[RowFormName, RowForm]] = {
    "float32": RowForm("float32", np.dtype(np.float32), 0, _as_float32, _as_float32),
    "float16": RowForm("float16", np.dtype(np.float16), 0, _to_float16, _as_float32),
    "bfloat16": RowForm("bfloat16", np.dtype(np.uint16), 0, _to_bfloat16, _from_bfloat16),
    "int8": RowForm("int8", np.dtype(np.int8), SCALE_BYTES, _to_int8, _from_int8),
}
FEATURE_DTYPES: Final[tuple[RowFormName, ...]] = get_args(RowFormName)


def find_form(name: str) -> RowForm:
    """Find a form to round rows to, by its name."""
    names = [form for form in ROW_FORMS if form != "float32"]
    for form in names:
        if form == name:
            return ROW_FORMS[form]
    raise BadRequest(f"form: expected one of {', '.join(names)}, got {name!r:.100}")
