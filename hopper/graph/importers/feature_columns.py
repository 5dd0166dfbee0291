"""Convert columns of tables to features: numbers as they are, texts as one column a category."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.graph.columns import FeatureColumn

MOST_CATEGORIES: Final = 1000
"""Largest number of categories of a column."""


def number_texts(texts: Sequence[str | None]) -> tuple[NDArray[np.int64], list[str]]:
    """Number texts as classes in sorted order.

    Returns
    -------
    [n] int64 classes, -1 for None or an empty text; and the names of the classes.
    """
    names = sorted({text for text in texts if text})
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[text] if text else -1 for text in texts], np.int64), names


def one_hot(column: Any, feature: FeatureColumn) -> NDArray[np.float32]:
    """Return [n, categories] float32: 1 for the category of each row of a pyarrow array of
    texts."""
    import pyarrow
    from pyarrow import compute

    categories = pyarrow.array(feature.categories, pyarrow.string())
    indices = compute.index_in(column.cast("string"), value_set=categories).fill_null(-1)
    category: NDArray[Any] = indices.to_numpy(zero_copy_only=False)
    return (category[:, None] == np.arange(feature.width)).astype(np.float32)


def describe_classes(names: Sequence[str]) -> str:
    """Describe which numbers classes got, for a note."""
    first_classes = ", ".join(f"{number} = {name}" for number, name in enumerate(names[:10]))
    return f"{len(names)} classes, in order of text: {first_classes}" + (
        ", ..." if names[10:] else ""
    )


def as_texts(values: Any) -> list[str | None] | None:
    """Convert an array or a list to texts, or return None if it holds anything else.

    An empty or missing text becomes None.
    """
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "UOT":
        return None
    texts: list[str | None] = []
    for value in array.tolist():
        # pandas has NaN for a missing text.
        is_missing = value is None or value == "" or value != value
        if not is_missing and not isinstance(value, str):
            return None
        texts.append(None if is_missing else value)
    return texts
