"""Find the columns of a table that hold labels, and join the labels of several tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.importers.tables import join_tasks
from hopper.graph.schema import Labels

Kind = Literal["label", "value", "several"]
Read = tuple[tuple[Labels, NDArray[Any]] | None, list[str]]
"""Labels, and the names of classes that the table does not number."""
_COLUMN: Final = re.compile(r"(label|value)(?:\.([A-Za-z0-9.+-]+))?(?:_(\d+))?")


def find_label_columns(names: Sequence[str], where: str) -> dict[str, list[str]]:
    """Find the columns of labels of each task, in order.

    They are ``label``, ``value``, or ``label_0``, ``label_1``, ... of 0 and 1. Where there are
    several tasks, they are ``label.TASK``, ``value.TASK``, or ``label.TASK_0``, ... Otherwise the
    task's name here is "".

    Raises
    ------
    GraphError: a task has columns of several kinds, or only some columns name a task.
    """
    tasks: dict[str, dict[Kind, list[tuple[int, str]]]] = {}
    for name in names:
        match = _COLUMN.fullmatch(name)
        if match is None or (match[1] == "value" and match[3]):
            continue
        by_kind = tasks.setdefault(match[2] or "", {})
        by_kind.setdefault(kind_of(name), []).append((int(match[3] or 0), name))
    if len(tasks) > 1 and "" in tasks:
        plain = [name for columns in tasks[""].values() for _, name in columns]
        raise GraphError(
            f"{where}: expected labels of tasks (label.NAME, value.NAME) or of none, given "
            f"{', '.join(task for task in tasks if task)} and {', '.join(plain)}"
        )
    for task, by_kind in tasks.items():
        if len(by_kind) > 1:
            all_names = [name for columns in by_kind.values() for _, name in columns]
            dot = f".{task}" if task else ""
            raise GraphError(
                f"{where}: expected one of label{dot}, value{dot}, label{dot}_0 label{dot}_1 ..., "
                f"given {all_names}"
            )
    return {
        task: [name for columns in by_kind.values() for _, name in sorted(columns)]
        for task, by_kind in tasks.items()
    }


def kind_of(column: str) -> Kind:
    """Return the kind of a label column: classes, values, or one of several of 0 and 1."""
    match = _COLUMN.fullmatch(column)
    assert match is not None
    if match[1] == "value":
        return "value"
    return "several" if match[3] else "label"


def all_columns(by_task: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the label columns of all tasks."""
    return [name for columns in by_task.values() for name in columns]


def join_read(by_task: Mapping[str, Read], where: str) -> tuple[Read, dict[str, list[str]]]:
    """Join the labels of a table's tasks.

    Returns
    -------
    The labels, with the names of their classes if there is one task; and the names of classes by
    task if there are several.

    Raises
    ------
    GraphError: :func:`join_tasks` refuses them.
    """
    if not by_task:
        return (None, []), {}
    if list(by_task) == [""]:
        return by_task[""], {}
    labels = {task: read for task, (read, _) in by_task.items() if read is not None}
    names = {task: names for task, (_, names) in by_task.items() if names}
    return (join_tasks(labels, where), []), names
