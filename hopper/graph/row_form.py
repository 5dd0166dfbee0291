"""How rows of features are stored: in 32, 16 or 8 bits a number.

A stored form knows its bytes a row, and how rows become floats. Rows lie in files and caches, and
cross the network, as they are stored; :func:`hopper.ops.row_form.to_floats` makes floats of them
where a model reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

RowFormName = Literal["float32", "float16", "bfloat16", "int8"]
SCALE_BYTES: Final = 4
"""of the float32 that an int8 row is multiplied with, which stands behind its numbers"""
_LARGEST: Final = np.float32(127)
_UPPER_HALF: Final = np.uint32(16)


class RoundingError(NamedTuple):
    """How far stored rows are from those that they were made of.

    absolute: the largest difference of a number. relative: the largest one of a row, divided by the
    row's largest absolute value; None where nothing bounds it, as of averages of such rows.
    """

    absolute: float
    relative: float | None

    def and_then(self, other: RoundingError) -> RoundingError:
        """How far rows are that were rounded once more."""
        both = self.relative, other.relative
        relative = None if None in both else sum(each for each in both if each is not None)
        return RoundingError(self.absolute + other.absolute, relative)


class _Rows(Protocol):
    """A node type or relation, as far as its features go."""

    @property
    def feature_dim(self) -> int | None: ...

    @property
    def feature_dtype(self) -> RowFormName | None: ...


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


class StoredFeatures(NamedTuple):
    """A table of features as it is stored: how many columns, of which dtype, in which form."""

    columns: int
    dtype: np.dtype[Any]
    form: RowForm

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.columns * self.dtype.itemsize


def stored_features(kind: _Rows, dim: int | None = None) -> StoredFeatures | None:
    """How the features of a node type or relation are stored; None without features.

    Parameters
    ----------
    dim: numbers in a row, where a server stores some of them; None = all.
    """
    if kind.feature_dim is None or kind.feature_dtype is None:
        return None
    form = ROW_FORMS[kind.feature_dtype]
    return StoredFeatures(form.columns(kind.feature_dim if dim is None else dim), form.dtype, form)
