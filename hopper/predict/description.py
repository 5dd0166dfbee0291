"""What the folder of a prediction says of itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hopper.errors import RequestError
from hopper.predict.order import DESCRIPTION_FILE, Order, read_order
from hopper.predict.task_columns import TaskColumns
from hopper.whole_files import write_text


def begin_description(out: Path, order: Order) -> bool:
    """Make the folder of a prediction, or find it as it was left; whether it is finished.

    Raises
    ------
    RequestError: the folder holds another prediction, or something else, or cannot be made.
    """
    file = out / DESCRIPTION_FILE
    if file.exists():
        found, told = read_order(out)
        for name, value in order.to_json().items():
            if getattr(found, name) != value:
                raise RequestError(
                    f"{out}: holds a prediction with {name} {getattr(found, name)!r}; expected "
                    f"another folder, or the same prediction; given {value!r}"
                )
        return bool(told.get("finished"))
    try:
        out.mkdir(parents=True, exist_ok=True)
        # One that was ended at its first word has nothing but an unfinished description.
        is_empty = not any(not each.name.startswith(DESCRIPTION_FILE) for each in out.iterdir())
    except OSError as error:
        raise RequestError(f"--out: {out}: cannot be made: {error.strerror}") from error
    if not is_empty:
        raise RequestError(f"--out: {out}: expected a new or an empty folder; it has content")
    write_text(file, json.dumps(order.to_json() | {"finished": False}, indent=1))
    return False


def count_predicted(out: Path) -> int:
    """How many nodes or edges a finished prediction has, over all parts of all machines."""
    return int(read_order(out)[1]["count"])


def finish_description(
    out: Path,
    order: Order,
    count: int,
    label_names: Sequence[str] = (),
    tasks: Sequence[TaskColumns] = (),
) -> None:
    """Say that all parts are there.

    Parameters
    ----------
    count: of nodes, over all parts of all machines.
    label_names: what the source called classes, where labels are predicted and have names.
    tasks: whose columns stand side by side, where there are several.
    """
    told = order.to_json() | {"finished": True, "count": count}
    if label_names:
        told["label_names"] = list(label_names)
    if tasks:
        told["tasks"] = [asdict(each) for each in tasks]
    write_text(out / DESCRIPTION_FILE, json.dumps(told, indent=1))
