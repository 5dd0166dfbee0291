"""HTML and SVG as text in which nothing foreign can become markup.

Whatever is not :class:`Markup` is escaped where it is put in, so a node type, file name or error
text from a results file is shown as it is and never read as a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Final

_VOID: Final = frozenset({"meta", "br", "wbr"})


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | float | None | Iterable["Child"]
"""what an element holds: markup, text to be escaped, nothing, or several of these"""
Attribute = str | float | bool | None


def joined(*children: Child) -> Markup:
    """Children one after the other; None is nothing."""
    return Markup("".join(_written(child) for child in children))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """One element.

    Parameters
    ----------
    attributes: ``class_`` stands for ``class`` and ``data_tip`` for ``data-tip``. None and False
        leave the attribute out, True writes it without a value.
    """
    opening = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{joined(*children)}</{name}>")


def breakable(label: str) -> Markup:
    """A contender's label, which may be broken between its options."""
    first, *options = re.split(r":(?=\S)", label)
    return joined(first, [(tag("wbr"), f":{option}") for option in options])


def percent(share: float) -> str:
    """A share of 1 as a CSS or SVG length."""
    return f"{100 * share:.4g}%"


def _written(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str | int | float):
        return escape(str(child))
    return "".join(_written(each) for each in child)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    told = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f' {name}="{escape(told)}"'
