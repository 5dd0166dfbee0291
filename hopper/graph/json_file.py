"""Read JSON files that may have been edited or damaged."""

from __future__ import annotations

import json
import stat
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from hopper.errors import GraphError
from hopper.files.addresses import AnyPath

_FIELDS: Final = {"missing": "missing field", "unexpected_keyword_argument": "unknown field"}
"""Words for pydantic's types of errors that are about a field, and not about its value."""
_Parsed = TypeVar("_Parsed")


def read_json(file: AnyPath, absent: str = "no such file") -> dict[str, Any]:
    """Read a file that holds one JSON object; ``absent`` is the error's text if it is missing."""
    try:
        # Reading a pipe might never end.
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
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"field {name!r} is given twice")
        fields[name] = value
    return fields


def parse_json(adapter: TypeAdapter[_Parsed], value: object, where: str) -> _Parsed:
    """Validate what a file holds; an error names ``where``, the first field, expected and given."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
    keys = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"])
    place = ": ".join(filter(None, (where, "".join(keys).removeprefix("."))))
    fault = _FIELDS.get(first["type"])
    if fault is None:
        expected = first["msg"].removeprefix("Input should be ")
        fault = f"expected {expected}, given {first['input']!r:.100}"
    raise GraphError(f"{place}: {fault}")
