"""Stored forms of feature rows: 32, 16 or 8 bits a number.

Rows keep their stored form in files and caches, and on the network unless ``cluster.feature_wire``
names another. :func:`hopper.ops.row_form.to_floats` converts them to floats where a model reads
them.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cache_server.feature_codec import CODECS, FeatureCodec, FeatureForm


class RoundingError(NamedTuple):
    """The distance of stored rows from those that they were made of.

    Attributes
    ----------
    absolute: the largest difference of any number.
    relative: the largest difference in a row, divided by the row's largest absolute value. None
        where it has no bound, as for averages of rounded rows.
    """

    absolute: Annotated[float, Field(strict=True, ge=0)]
    relative: Annotated[float, Field(strict=True, ge=0)] | None

    def __str__(self) -> str:
        largest = f"a number is off by up to {self.absolute:.2g}"
        if self.relative is None:
            return largest
        return f"{largest}, and by {self.relative:.2%} of its row's largest"

    def larger_of(self, other: RoundingError) -> RoundingError:
        """Bound the error of two sets of rows, with this error and with ``other``."""
        errors = self.relative, other.relative
        relative = None if None in errors else max(e for e in errors if e is not None)
        return RoundingError(max(self.absolute, other.absolute), relative)

    def and_then(self, other: RoundingError) -> RoundingError:
        """Bound the error of rows with this error that were rounded again, with ``other``."""
        errors = self.relative, other.relative
        relative = None if None in errors else sum(e for e in errors if e is not None)
        return RoundingError(self.absolute + other.absolute, relative)


def find_error(before: NDArray[np.float32], after: NDArray[np.float32]) -> RoundingError:
    """Measure how far rows [n, dim] are off after they were rounded."""
    # The difference of two float32 numbers needs more bits than they have.
    differences = np.abs(after.astype(np.float64) - before).max(1, initial=0)
    largest = np.abs(before).max(1, initial=0).astype(np.float64)
    shares = differences / np.where(largest > 0, largest, 1)
    return RoundingError(float(differences.max(initial=0)), float(shares.max(initial=0)))


class _Rows(Protocol):
    """The features' fields of a node type or relation."""

    @property
    def feature_dim(self) -> int | None: ...

    @property
    def feature_dtype(self) -> FeatureForm | None: ...


class StoredFeatures(NamedTuple):
    """Columns, dtype and form of a stored table of features."""

    columns: int
    dtype: np.dtype[Any]
    form: FeatureCodec

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.columns * self.dtype.itemsize


def stored_features(kind: _Rows, dim: int | None = None) -> StoredFeatures | None:
    """Return how the features of a node type or relation are stored; None without features.

    ``dim`` is the number of a row's numbers, if a server stores only some of them.
    """
    if kind.feature_dim is None or kind.feature_dtype is None:
        return None
    form = CODECS[kind.feature_dtype]
    return StoredFeatures(form.columns(kind.feature_dim if dim is None else dim), form.dtype, form)
