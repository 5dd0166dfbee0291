"""How rows of numbers are stored and sent: in 32, 16 or 8 bits a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest

RowFormName = Literal["float32", "float16", "bfloat16", "int8"]
SCALE_BYTES: Final = 4
"""of the float32 that an int8 row is multiplied with, which stands behind its numbers"""
_LARGEST: Final = np.float32(127)
_UPPER_HALF: Final = np.uint32(16)


@dataclass(frozen=True)
class RowForm:
    """A form that rows are stored in.

    Attributes
    ----------
    name: as the schema has it.
    dtype: of a stored table's columns; numpy has no bfloat16, whose bits are kept as uint16.
    more: columns behind those of a row's numbers.
    encode: makes stored rows [n, dim + more] of float32 [n, dim]; numbers that the form cannot hold
        become infinite.
    decode: makes float32 [n, dim] of stored rows.
    """

    name: RowFormName
    dtype: np.dtype[Any]
    more: int
    encode: Callable[[NDArray[np.float32]], NDArray[Any]]
    decode: Callable[[NDArray[Any]], NDArray[np.float32]]

    def columns(self, dim: int) -> int:
        """How many columns a table of ``dim`` numbers a row has."""
        return dim + self.more

    def row_bytes(self, dim: int) -> int:
        """Bytes of a row of ``dim`` numbers."""
        return self.columns(dim) * self.dtype.itemsize


def _as_float32(rows: NDArray[Any]) -> NDArray[np.float32]:
    return np.asarray(rows).astype(np.float32)


def _to_float16(rows: NDArray[np.float32]) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        return rows.astype(np.float16)


def _to_bfloat16(rows: NDArray[np.float32]) -> NDArray[np.uint16]:
    """To the nearest, of two to the even one."""
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
    found: NDArray[np.float32] = rows[:, :-SCALE_BYTES].astype(np.float32) * scales
    return found


ROW_FORMS: Final[Mapping[RowFormName, RowForm]] = {
    "float32": RowForm("float32", np.dtype(np.float32), 0, _as_float32, _as_float32),
    "float16": RowForm("float16", np.dtype(np.float16), 0, _to_float16, _as_float32),
    "bfloat16": RowForm("bfloat16", np.dtype(np.uint16), 0, _to_bfloat16, _from_bfloat16),
    "int8": RowForm("int8", np.dtype(np.int8), SCALE_BYTES, _to_int8, _from_int8),
}
FEATURE_DTYPES: Final[tuple[RowFormName, ...]] = get_args(RowFormName)


def find_form(name: str) -> RowForm:
    """The form that rows are rounded to.

    Raises
    ------
    BadRequest: rows are not rounded to one of this name.
    """
    names = [form for form in ROW_FORMS if form != "float32"]
    for form in names:
        if form == name:
            return ROW_FORMS[form]
    raise BadRequest(f"form: expected one of {', '.join(names)}, got {name!r:.100}")
