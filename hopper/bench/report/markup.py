"""HTML and SVG as text. Texts from files cannot become markup.

Everything that is not :class:`Markup` is escaped when it is put into an element. So a node type, a
file name or an error text is shown as it is, and is never read as a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Final

_VOID: Final = frozenset({"meta", "br", "wbr"})


class Markup(str):
    """Text that is already markup."""

    __slots__ = ()


Child = str | float | None | Iterable["Child"]
"""The content of an element: markup, text to be escaped, nothing, or several of these."""
Attribute = str | float | bool | None


def join_markup(*children: Child) -> Markup:
    """Join children in their order. None adds nothing."""
    return Markup("".join(_render(child) for child in children))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """Make an element.

    Parameters
    ----------
    attributes: ``class_`` stands for ``class``, and ``data_tip`` for ``data-tip``. None and False
        leave an attribute out. True writes it without a value.
    """
    opening = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{join_markup(*children)}</{name}>")


def breakable(label: str) -> Markup:
    """Return the label of a contender, with possible line breaks between its options."""
    engine, *options = re.split(r":(?=\S)", label)
    return join_markup(engine, [(tag("wbr"), f":{option}") for option in options])


def percent(share: float) -> str:
    """Write a share of 1 as a CSS or SVG length."""
    return f"{100 * share:.4g}%"


def _render(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int | float):
        return escape(str(child))
    return "".join(_render(item) for item in child)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(text)}"'
