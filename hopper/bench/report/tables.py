"""Tables with captions, and the settings of a run as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hopper.bench.report.markup import Child, Markup, tag


class Cell(NamedTuple):
    """A number, set to the right. ``mark`` is a class such as "bad"."""

    text: Child
    mark: str = ""


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[Child | Cell]], hidden: bool = True
) -> Markup:
    """Make a table in a box that scrolls if the page is narrow.

    Parameters
    ----------
    rows: the first cell of a row is its heading. A column with a :class:`Cell` is set to the right.
    hidden: whether the caption is for screen readers only.
    """
    cells_by_row = [list(row) for row in rows]
    right = {
        index for row in cells_by_row for index, cell in enumerate(row) if isinstance(cell, Cell)
    }
    headings = [
        tag("th", heading, scope="col", class_="number" if index in right else None)
        for index, heading in enumerate(head)
    ]
    body = [
        tag("tr", [_cell(index, cell) for index, cell in enumerate(row)]) for row in cells_by_row
    ]
    content = tag(
        "table",
        tag("caption", caption, class_="unseen" if hidden else None),
        tag("thead", tag("tr", headings)),
        tag("tbody", body),
    )
    # Focusable, so that it can be scrolled without a pointer.
    return tag("div", content, class_="scroll", tabindex=0, role="region", aria_label=caption)


def facts(caption: str, values: Mapping[str, Child]) -> Markup:
    """Make a table of names and values."""
    rows = [
        tag("tr", tag("th", name, scope="row"), tag("td", value)) for name, value in values.items()
    ]
    return tag("div", tag("table", tag("caption", caption), tag("tbody", rows), class_="facts"),
               class_="scroll", tabindex=0, role="region", aria_label=caption)  # fmt: skip


def config_text(config: Mapping[str, Any]) -> str:
    """Write a configuration as text that resembles TOML, with a paragraph for each section."""
    paragraphs = []
    for section, values in config.items():
        if isinstance(values, Mapping):
            lines = [f"{key} = {_value(value)}" for key, value in values.items()]
            paragraphs.append("\n".join([f"[{section}]", *lines]))
        else:
            paragraphs.append(f"{section} = {_value(values)}")
    return "\n\n".join(paragraphs)


def options_text(options: Mapping[str, Any]) -> str:
    """Write a few options in a row."""
    return ", ".join(f"{key} = {_value(value)}" for key, value in options.items())


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _cell(index: int, cell: Child | Cell) -> Markup:
    if isinstance(cell, Cell):
        classes = " ".join(["number", cell.mark]).strip()
        return tag("td", cell.text, class_=classes)
    return tag("th", cell, scope="row") if index == 0 else tag("td", cell)
