"""How rows of features are stored: in 32, 16 or 8 bits a number.

Rows lie in files and caches as they are stored, and cross the network so unless
``cluster.feature_wire`` says otherwise; :func:`hopper.ops.row_form.to_floats` makes floats of them
where a model reads them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cache_server.row_form import ROW_FORMS, RowForm, RowFormName


class RoundingError(NamedTuple):
    """How far stored rows are from those that they were made of.

    absolute: the largest difference of a number. relative: the largest one of a row, divided by the
    row's largest absolute value; None where nothing bounds it, as of averages of such rows.
    """

    absolute: float
    relative: float | None

    def larger_of(self, other: RoundingError) -> RoundingError:
        """How far two sets of rows are off at most."""
        both = self.relative, other.relative
        relative = None if None in both else max(share for share in both if share is not None)
        return RoundingError(max(self.absolute, other.absolute), relative)

    def and_then(self, other: RoundingError) -> RoundingError:
        """How far rows are that were rounded once more."""
        both = self.relative, other.relative
        relative = None if None in both else sum(each for each in both if each is not None)
        return RoundingError(self.absolute + other.absolute, relative)


def find_error(before: NDArray[np.float32], after: NDArray[np.float32]) -> RoundingError:
    """How far rows [n, dim] are off after they were rounded."""
    # Differences of two float32 numbers need more bits than these have.
    differences = np.abs(after.astype(np.float64) - before).max(1, initial=0)
    largest = np.abs(before).max(1, initial=0).astype(np.float64)
    shares = differences / np.where(largest > 0, largest, 1)
    return RoundingError(float(differences.max(initial=0)), float(shares.max(initial=0)))


class _Rows(Protocol):
    """A node type or relation, as far as its features go."""

    @property
    def feature_dim(self) -> int | None: ...

    @property
    def feature_dtype(self) -> RowFormName | None: ...


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
