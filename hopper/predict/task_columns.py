"""The columns of each of several tasks in a prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.graph.schema import LabelKind, Labels


@dataclass(frozen=True)
class TaskColumns:
    """The columns of one task.

    Attributes
    ----------
    kind: kind of its labels.
    first, stop: the range of its columns.
    as_class: whether there is one column, with class numbers.
    label_names: the source's names of the classes by number; empty if it numbered them.
    """

    name: str
    kind: LabelKind
    first: int
    stop: int
    as_class: bool
    label_names: Sequence[str] = field(default=())

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the task's predictions: [n] class numbers or values, or [n, width] of others.

        Parameters
        ----------
        values: [n, columns], the predictions of all tasks.
        """
        columns = values[:, self.first : self.stop]
        if self.as_class:
            return columns[:, 0].astype(np.int64)
        return columns[:, 0] if self.kind == "float" and columns.shape[1] == 1 else columns


def columns_of(
    labels: Labels, what: str, names: Callable[[str], Sequence[str]]
) -> list[TaskColumns]:
    """Return the columns of every task; none unless the labels are of several tasks.

    Parameters
    ----------
    what: what is predicted: labels, probabilities or logits.
    names: returns the names of a task's classes.
    """
    columns, first = [], 0
    for name, task in labels.tasks:
        as_class = what == "labels" and task.kind == "class"
        stop = first + (task.columns if what == "labels" else task.classes)
        columns.append(TaskColumns(name, task.kind, first, stop, as_class, tuple(names(name))))
        first = stop
    return columns
