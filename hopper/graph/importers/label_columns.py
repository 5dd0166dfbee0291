"""Find the columns of a table that hold labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

from hopper.errors import GraphError

Kind = Literal["label", "value", "several"]
_COLUMN: Final = re.compile(r"(label|value)(?:\.([A-Za-z0-9.+-]+))?(?:_(\d+))?")


def find_label_columns(names: Sequence[str], where: str) -> dict[str, list[str]]:
    """Find the columns of labels of each task, in order.

    They are ``label``, ``value``, or ``label_0``, ``label_1``, ... of 0 and 1. Where there are
    several tasks, they are ``label.TASK``, ``value.TASK``, or ``label.TASK_0``, ... Otherwise the
    task's name here is "".
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
