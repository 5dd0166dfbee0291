"""The description file in the folder of a prediction."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from hopper.errors import GraphError, RequestError
from hopper.files.whole_files import write_text
from hopper.graph.json_file import read_json
from hopper.predict.request import PredictionRequest

DESCRIPTION_FILE: Final = "_prediction.json"
"""file in a prediction's folder; readers of Parquet folders ignore names that begin with ``_``"""
_FIELDS: Final = [of.name for of in fields(PredictionRequest) if of.name != "overrides"]


def read_description(out: Path) -> tuple[PredictionRequest, dict[str, Any]]:
    """Read the request of a prediction's folder, and the whole description in it. A
    :class:`GraphError` says that the folder has none, or that it lacks a field."""
    file = out / DESCRIPTION_FILE
    description = read_json(file, "no such file; expected the folder of a prediction")
    for name in _FIELDS:
        if name not in description:
            raise GraphError(f"{file}: {name}: missing field")
    return PredictionRequest(**{name: description[name] for name in _FIELDS}), description


def begin_description(out: Path, request: PredictionRequest) -> bool:
    """Create the folder of a prediction, or check that it has this one already; return whether the
    prediction is finished. A :class:`RequestError` says that the folder has another prediction or
    other content, or cannot be created."""
    if (out / DESCRIPTION_FILE).exists():
        _, description = read_description(out)
        for name in _FIELDS:
            given = getattr(request, name)
            if description[name] != given:
                raise RequestError(
                    f"{out}: holds a prediction with {name} {description[name]!r}; expected "
                    f"another folder, or the same prediction; given {given!r}"
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
    write_description(out, request, finished=False)
    return False


def write_description(out: Path, request: PredictionRequest, **more: Any) -> None:
    """Write a prediction's request, and whatever else its description says."""
    description = {name: value for name, value in asdict(request).items() if name in _FIELDS}
    write_text(out / DESCRIPTION_FILE, json.dumps(description | more, indent=1))
