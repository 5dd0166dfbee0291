"""Read JSON files that may have been edited or damaged."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from hopper.errors import GraphError


def read_json(file: Path, absent: str = "no such file") -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Parameters
    ----------
    absent: the error's text if there is no such file.

    Raises
    ------
    GraphError: the file is missing, is no regular file (reading a pipe might never end), is not
        JSON in UTF-8, is nested too deeply, names a field twice, or does not hold an object.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise GraphError(f"{file}: expected a file, found something else")
        data = json.loads(file.read_bytes(), object_pairs_hook=_refuse_repeated)
    except FileNotFoundError:
        raise GraphError(f"{file}: {absent}") from None
    except OSError as error:
        raise GraphError(f"{file}: cannot be read: {error.strerror}") from error
    except RecursionError:
        raise GraphError(f"{file}: not valid JSON: nested too deeply") from None
    except ValueError as error:
        raise GraphError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise GraphError(f"{file}: expected a JSON object, found {type(data).__name__}")
    return data


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {repeated!r} is given twice")
    return fields
