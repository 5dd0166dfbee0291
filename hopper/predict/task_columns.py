"""Where the values of each of several tasks stand, side by side, in a prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import LabelKind, Labels


@dataclass(frozen=True)
class TaskColumns:
    """One task's columns.

    Attributes
    ----------
    kind: of its labels.
    first, stop: which columns. as_class: whether the one is the number of a class.
    label_names: what the source called the classes, by number, where it did not number them.
    """

    name: str
    kind: LabelKind
    first: int
    stop: int
    as_class: bool
    label_names: Sequence[str] = field(default=())

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """[n] class numbers or values, or [n, width] of anything else: the task's own.

        Parameters
        ----------
        values: [n, columns], of all tasks.
        """
        own = values[:, self.first : self.stop]
        if self.as_class:
            return own[:, 0].astype(np.int64)
        return own[:, 0] if self.kind == "float" and own.shape[1] == 1 else own


def columns_of(
    labels: Labels, what: str, names: Callable[[str], Sequence[str]]
) -> list[TaskColumns]:
    """The tasks' columns; none where there are no several tasks.

    Parameters
    ----------
    what: is predicted: labels, probabilities or logits.
    names: of a task's classes.
    """
    found, first = [], 0
    for name, own in labels.tasks:
        as_class = what == "labels" and own.kind == "class"
        width = own.columns if what == "labels" else own.classes
        columns = TaskColumns(name, own.kind, first, first + width, as_class, tuple(names(name)))
        found.append(columns)
        first += width
    return found
