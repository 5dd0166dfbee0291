"""The forms in which rows of features are stored and sent: 32, 16 or 8 bits a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest

FeatureForm = Literal["float32", "float16", "bfloat16", "int8"]
FEATURE_FORMS: Final[tuple[FeatureForm, ...]] = get_args(FeatureForm)
SCALE_BYTES: Final = 4
"""bytes of the float32 scale of an int8 row, which follows its numbers"""
_LARGEST: Final = np.float32(127)
_UPPER_HALF: Final = np.uint32(16)


@dataclass(frozen=True)
class FeatureCodec:
    """Encodes float32 rows [n, dim] in a form of ``dtype``, with ``more`` columns, and decodes."""

    name: FeatureForm
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
    numbers = np.clip(numbers, -_LARGEST, _LARGEST).astype(np.int8)
    return np.hstack((numbers, scales.view(np.int8)))


def _from_int8(rows: NDArray[np.int8]) -> NDArray[np.float32]:
    scales = np.ascontiguousarray(rows[:, -SCALE_BYTES:]).view(np.float32)
    floats: NDArray[np.float32] = rows[:, :-SCALE_BYTES].astype(np.float32) * scales
    return floats


CODECS: Final[Mapping[FeatureForm, FeatureCodec]] = {
    codec.name: codec
    for codec in (
        FeatureCodec("float32", np.dtype(np.float32), 0, _as_float32, _as_float32),
        FeatureCodec("float16", np.dtype(np.float16), 0, _to_float16, _as_float32),
        FeatureCodec("bfloat16", np.dtype(np.uint16), 0, _to_bfloat16, _from_bfloat16),
        FeatureCodec("int8", np.dtype(np.int8), SCALE_BYTES, _to_int8, _from_int8),
    )
}


def find_codec(name: str) -> FeatureCodec:
    """Find a codec that rounds rows, by the name of its form."""
    codec = CODECS.get(name) if name != "float32" else None  # type: ignore[call-overload]
    if codec is None:
        forms = ", ".join(FEATURE_FORMS[1:])
        raise BadRequest(f"form: expected one of {forms}, got {name!r:.100}")
    return codec
