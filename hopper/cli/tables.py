"""How commands lay out their tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.markup import escape
from rich.table import Table


def make_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, *,
    texts: int = 1, **settings: Any,
) -> Table:  # fmt: skip
    """Make a table for :func:`~hopper.display.console_tables.print_table`.

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
