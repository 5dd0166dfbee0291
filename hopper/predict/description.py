"""The description file in the folder of a prediction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from hopper.errors import GraphError, RequestError
from hopper.files.whole_files import write_text
from hopper.graph.json_file import read_json
from hopper.predict.request import PredictionRequest, TaskColumns

DESCRIPTION_FILE: Final = "_prediction.json"
"""file in a prediction's folder; readers of Parquet folders ignore names that begin with ``_``"""


def read_description(out: Path) -> tuple[PredictionRequest, dict[str, Any]]:
    """Read the request of a prediction's folder, and the whole description in it.

    Raises
    ------
    GraphError: the folder has no prediction, or its description lacks a field.
    """
    file = out / DESCRIPTION_FILE
    description = read_json(file, "no such file; expected the folder of a prediction")
    names = list(_describe(PredictionRequest()))
    missing = [name for name in names if name not in description]
    if missing:
        raise GraphError(f"{file}: {missing[0]}: missing field")
    return PredictionRequest(**{name: description[name] for name in names}), description


def begin_description(out: Path, request: PredictionRequest) -> bool:
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
        _, description = read_description(out)
        for name, value in _describe(request).items():
            if description[name] != value:
                raise RequestError(
                    f"{out}: holds a prediction with {name} {description[name]!r}; expected "
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
    write_text(file, json.dumps(_describe(request) | {"finished": False}, indent=1))
    return False


def finish_description(
    out: Path,
    request: PredictionRequest,
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
    description = _describe(request) | {"finished": True, "count": count}
    if label_names:
        description["label_names"] = list(label_names)
    if tasks:
        description["tasks"] = [asdict(task) for task in tasks]
    write_text(out / DESCRIPTION_FILE, json.dumps(description, indent=1))


def _describe(request: PredictionRequest) -> dict[str, Any]:
    return {name: value for name, value in asdict(request).items() if name != "overrides"}
