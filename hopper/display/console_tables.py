"""Tables on a terminal that is narrower than they are: nothing of them is cut off."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Column, Table

_UNBOUNDED = 1 << 16


def make_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, *,
    texts: int = 1, **settings: Any,
) -> Table:  # fmt: skip
    """Make a table for :func:`print_table`.

    Parameters
    ----------
    texts: how many columns, the first ones, have texts and not numbers.
    settings: further ones of rich's table.
    """
    table = Table(title=title, **settings)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < texts else "right")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table so that all of it can be read.

    Words are never broken. Where the columns do not fit with their words on several lines either,
    every row becomes a few lines, one a column.

    Parameters
    ----------
    table: without a footer. The widths of its columns are set.
    """
    widths = fit_columns(console, table)
    if widths is None:
        if table.title is not None:
            console.print(table.title)
        console.print(list_rows(table), soft_wrap=False)
        return
    for column, width in zip(table.columns, widths, strict=True):
        column.width, column.overflow, column.no_wrap = width, "fold", False
    console.print(table, soft_wrap=False)


def fit_columns(console: Console, table: Table) -> list[int] | None:
    """Return the widths of a table's columns with which it fits the console; None if there are
    none.

    A column gets what its longest line takes, or less, but no less than its longest word.
    """
    spans = [_span(console, column) for column in table.columns]
    whole = _measure(console, table).maximum
    frame = whole - sum(span.maximum for span in spans)
    widths = [span.maximum for span in spans]
    while sum(widths) + frame > console.width:
        rooms = [width - span.minimum for width, span in zip(widths, spans, strict=True)]
        # The column with the most lines' worth of room gives way first.
        index = max(range(len(widths)), key=lambda column: (rooms[column] > 0, widths[column]))
        if rooms[index] <= 0:
            return None
        widths[index] -= 1
    return widths


def list_rows(table: Table) -> Table:
    """Return a table's rows below one another: of each column its heading and the row's cell."""
    listed = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    listed.add_column(overflow="fold")
    listed.add_column(overflow="fold")
    headers = [column.header for column in table.columns]
    headings = [head.replace("\n", " ") if isinstance(head, str) else head for head in headers]
    for row in zip(*(column.cells for column in table.columns), strict=True):
        if listed.row_count:
            listed.add_row()
        for heading, cell in zip(headings, row, strict=True):
            if cell != "":
                listed.add_row(heading, cell)
    return listed


def _span(console: Console, column: Column) -> Measurement:
    """Return the longest word and the longest line of a column."""
    spans = [_measure(console, cell) for cell in (column.header, *column.cells)]
    return Measurement(max(s.minimum for s in spans), max(s.maximum for s in spans))


def _measure(console: Console, content: RenderableType) -> Measurement:
    options = console.options.update(max_width=_UNBOUNDED)
    return Measurement.get(console, options, content)
