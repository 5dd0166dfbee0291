"""Which columns of a table hold labels, and how they are joined where they are of several tasks."""

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
"""labels, and what classes are called that the table does not number"""
_COLUMN: Final = re.compile(r"(label|value)(?:\.([A-Za-z0-9.+-]+))?(?:_(\d+))?")


def find_label_columns(names: Sequence[str], where: str) -> dict[str, list[str]]:
    """By task, the columns of its labels, in order: ``label`` or ``value``, or ``label_0``,
    ``label_1``, ... of 0 and 1; where they are of several tasks, ``label.TASK``, ``value.TASK`` and
    ``label.TASK_0``, ... Without tasks the one is called "".

    Raises
    ------
    GraphError: columns of several kinds, or of tasks and of none.
    """
    found: dict[str, dict[Kind, list[tuple[int, str]]]] = {}
    for name in names:
        match = _COLUMN.fullmatch(name)
        if match is None or (match[1] == "value" and match[3]):
            continue
        by_kind = found.setdefault(match[2] or "", {})
        by_kind.setdefault(kind_of(name), []).append((int(match[3] or 0), name))
    if len(found) > 1 and "" in found:
        plain = [name for columns in found[""].values() for _, name in columns]
        raise GraphError(
            f"{where}: expected labels of tasks (label.NAME, value.NAME) or of none, given "
            f"{', '.join(task for task in found if task)} and {', '.join(plain)}"
        )
    for task, by_kind in found.items():
        if len(by_kind) > 1:
            given = [name for columns in by_kind.values() for _, name in columns]
            own = f".{task}" if task else ""
            raise GraphError(
                f"{where}: expected one of label{own}, value{own}, label{own}_0 label{own}_1 ..., "
                f"given {given}"
            )
    return {
        task: [name for columns in by_kind.values() for _, name in sorted(columns)]
        for task, by_kind in found.items()
    }


def kind_of(column: str) -> Kind:
    """What a label column holds: classes, values, or 0 and 1."""
    match = _COLUMN.fullmatch(column)
    assert match is not None
    if match[1] == "value":
        return "value"
    return "several" if match[3] else "label"


def all_columns(by_task: Mapping[str, Sequence[str]]) -> list[str]:
    """Those of all tasks."""
    return [name for columns in by_task.values() for name in columns]


def join_read(by_task: Mapping[str, Read], where: str) -> tuple[Read, dict[str, list[str]]]:
    """The labels of a table, and names of classes by task, where they are of several.

    Raises
    ------
    GraphError: as of :func:`join_tasks`.
    """
    if not by_task:
        return (None, []), {}
    if list(by_task) == [""]:
        return by_task[""], {}
    labels = {task: own for task, (own, _) in by_task.items() if own is not None}
    names = {task: names for task, (_, names) in by_task.items() if names}
    return (join_tasks(labels, where), []), names
