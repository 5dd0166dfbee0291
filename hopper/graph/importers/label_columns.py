"""Find the columns of a table that hold labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from hopper.errors import GraphError

_COLUMN: Final = re.compile(r"(label|value)(?:\.([A-Za-z0-9.+-]+))?(?:_(\d+))?")


def find_label_columns(names: Sequence[str], where: str) -> dict[str, tuple[str, list[str]]]:
    """Find the columns of labels of each task, in order, and their kind.

    They are ``label``, ``value``, or ``label_0``, ``label_1``, ... of 0 and 1, which is the kind
    "several". Where there are several tasks, they are ``label.TASK``, ``value.TASK``, or
    ``label.TASK_0``, ... Otherwise the task's name here is "".
    """
    tasks: dict[str, list[tuple[str, int, str]]] = {}
    for name in names:
        match = _COLUMN.fullmatch(name)
        if match is not None and not (match[1] == "value" and match[3]):
            kind = "several" if match[3] else match[1]
            tasks.setdefault(match[2] or "", []).append((kind, int(match[3] or 0), name))
    if len(tasks) > 1 and "" in tasks:
        raise GraphError(
            f"{where}: expected labels of tasks (label.NAME, value.NAME) or of none, given "
            f"{', '.join(filter(None, tasks))} and {', '.join(name for *_, name in tasks[''])}"
        )
    for task, columns in tasks.items():
        if len({kind for kind, *_ in columns}) > 1:
            dot = f".{task}" if task else ""
            raise GraphError(
                f"{where}: expected one of label{dot}, value{dot}, label{dot}_0 label{dot}_1 ..., "
                f"given {[name for *_, name in columns]}"
            )
    return {
        task: (columns[0][0], [name for *_, name in sorted(columns)])
        for task, columns in tasks.items()
    }
