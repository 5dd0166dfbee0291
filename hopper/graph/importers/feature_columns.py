"""Columns of tables that become features: numbers as they are, texts as one column a category."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MOST_CATEGORIES: Final = 1000
"""of a column"""


@dataclass(frozen=True)
class FeatureColumn:
    """A column of a table.

    Attributes
    ----------
    categories: in order of text; none = it holds numbers.
    numbers: how many a row has, where it holds lists of them.
    """

    name: str
    categories: tuple[str, ...] = ()
    numbers: int = 1

    @property
    def width(self) -> int:
        """How many columns of features it becomes."""
        return len(self.categories) or self.numbers

    @property
    def names(self) -> list[str]:
        """What these are called."""
        if self.categories:
            return [f"{self.name}={category}" for category in self.categories]
        if self.numbers == 1:
            return [self.name]
        return [f"{self.name}_{place}" for place in range(self.numbers)]


def width_of(columns: Iterable[FeatureColumn]) -> int:
    """How many columns of features some columns become."""
    return sum(column.width for column in columns)


def number_texts(texts: Sequence[str | None]) -> tuple[NDArray[np.int64], list[str]]:
    """[n] int64 classes, -1 where nothing stands, and what they are called, in order of text."""
    names = sorted({text for text in texts if text})
    places = {name: place for place, name in enumerate(names)}
    return np.array([places[text] if text else -1 for text in texts], np.int64), names


def one_hot(column: Any, own: FeatureColumn) -> NDArray[np.float32]:
    """[n, categories]: 1 for the category of each row, of a pyarrow array of texts."""
    import pyarrow
    from pyarrow import compute

    known = pyarrow.array(own.categories, pyarrow.string())
    places = compute.index_in(column.cast("string"), value_set=known).fill_null(-1)
    found: NDArray[Any] = places.to_numpy(zero_copy_only=False)
    return (found[:, None] == np.arange(own.width)).astype(np.float32)


def told_classes(names: Sequence[str]) -> str:
    """Which numbers classes got, for a note."""
    some = ", ".join(f"{number} = {name}" for number, name in enumerate(names[:10]))
    return f"{len(names)} classes, in order of text: {some}" + (", ..." if names[10:] else "")


def as_texts(values: Any) -> list[str | None] | None:
    """Texts of an array or a list, None where nothing stands; None if they are something else."""
    found = np.asarray(values)
    if found.ndim != 1 or found.dtype.kind not in "UOT":
        return None
    texts: list[str | None] = []
    for each in found.tolist():
        # pandas has NaN where a text is missing.
        nothing = each is None or each == "" or each != each
        if not nothing and not isinstance(each, str):
            return None
        texts.append(None if nothing else each)
    return texts
