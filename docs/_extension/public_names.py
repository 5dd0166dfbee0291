"""The reference of the Python API, made from ``hopper.__all__``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType

import hopper


def public_names() -> str:
    """A heading for every kind of name, and a directive of autodoc for every name."""
    things = {name: getattr(hopper, name) for name in hopper.__all__}
    kinds = {
        "Functions": [n for n, thing in things.items() if inspect.isfunction(thing)],
        "Classes": [n for n, thing in things.items() if inspect.isclass(thing)],
        "Modules": [n for n, thing in things.items() if isinstance(thing, ModuleType)],
    }
    errors = [n for n in kinds["Classes"] if issubclass(things[n], Exception)]
    kinds["Classes"] = [n for n in kinds["Classes"] if n not in errors]
    kinds["Errors"] = errors
    assert sum(map(len, kinds.values())) == len(things)
    return "\n".join(line for kind, names in kinds.items() for line in _part(kind, names))


def _part(kind: str, names: list[str]) -> Iterator[str]:
    yield from ("", f"## {kind}", "", "```{eval-rst}")
    for name in names:
        yield from _directive(kind, name)
    yield "```"


def _directive(kind: str, name: str) -> Iterator[str]:
    match kind:
        case "Functions":
            yield from (f".. autofunction:: hopper.{name}", "")
        case "Modules":
            yield from (f".. automodule:: hopper.{name}", "   :no-members:", "")
        case "Errors":
            yield from (f".. autoexception:: hopper.{name}", "   :show-inheritance:", "")
        case _:
            # Its keys have a page of their own.
            is_config = name == "Config"
            yield f".. autoclass:: hopper.{name}{'()' if is_config else ''}"
            yield from () if is_config else ("   :members:",)
            yield ""
