"""The description file in the folder of a prediction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from hopper.errors import RequestError
from hopper.files.whole_files import write_text
from hopper.predict.order import DESCRIPTION_FILE, Order, read_order
from hopper.predict.task_columns import TaskColumns


def begin_description(out: Path, order: Order) -> bool:
    """Create the folder of a prediction, or check that it has this one already.

    Returns
    -------
    Whether the prediction is finished.

    Raises
    ------
    RequestError: the folder has another prediction or other content, or cannot be created.
    """
    file = out / DESCRIPTION_FILE
    if file.exists():
        earlier, description = read_order(out)
        for name, value in order.to_json().items():
            if getattr(earlier, name) != value:
                raise RequestError(
                    f"{out}: holds a prediction with {name} {getattr(earlier, name)!r}; expected "
                    f"another folder, or the same prediction; given {value!r}"
                )
        return bool(description.get("finished"))
    try:
        out.mkdir(parents=True, exist_ok=True)
        # A prediction that was interrupted early may have left an unfinished description only.
        is_empty = all(content.name.startswith(DESCRIPTION_FILE) for content in out.iterdir())
    except OSError as error:
        raise RequestError(f"--out: {out}: cannot be made: {error.strerror}") from error
    if not is_empty:
        raise RequestError(f"--out: {out}: expected a new or an empty folder; it has content")
    write_text(file, json.dumps(order.to_json() | {"finished": False}, indent=1))
    return False


def count_predicted(out: Path) -> int:
    """Return the number of nodes or edges of a finished prediction, over all machines."""
    return int(read_order(out)[1]["count"])


def finish_description(
    out: Path,
    order: Order,
    count: int,
    label_names: Sequence[str] = (),
    tasks: Sequence[TaskColumns] = (),
) -> None:
    """Write that the prediction is finished.

    Parameters
    ----------
    count: number of nodes or edges, over all parts of all machines.
    label_names: the source's names of classes, if labels are predicted and have names.
    tasks: the columns of each task, if there are several.
    """
    description = order.to_json() | {"finished": True, "count": count}
    if label_names:
        description["label_names"] = list(label_names)
    if tasks:
        description["tasks"] = [asdict(task) for task in tasks]
    write_text(out / DESCRIPTION_FILE, json.dumps(description, indent=1))
