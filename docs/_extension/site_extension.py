"""What the site needs besides Sphinx: pages made from the code, and links into the repository."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from command_reference import command_reference
from configuration_reference import configuration_reference
from docstrings import convert_docstring
from public_names import public_names
from repository_files import RepositoryFiles

GENERATED: Final[dict[str, Callable[[], str]]] = {
    "<!-- every key -->": configuration_reference,
    "<!-- every command -->": command_reference,
    "<!-- every name -->": public_names,
}
"""by the comment of a page that it takes the place of"""


def setup(app: Any) -> dict[str, bool]:
    """Connect everything to Sphinx's events."""
    files = RepositoryFiles(app)
    app.connect("source-read", _fill_in)
    app.connect("source-read", files.mark_links)
    app.connect("doctree-resolved", files.resolve_links)
    app.connect("build-finished", files.write_all)
    app.connect("autodoc-process-docstring", _convert)
    return {"parallel_read_safe": False, "parallel_write_safe": False}


def _fill_in(app: Any, page: str, source: list[str]) -> None:
    for comment, make in GENERATED.items():
        if comment in source[0]:
            source[0] = source[0].replace(comment, make())


def _convert(app: Any, kind: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = convert_docstring(lines)
