"""Docstrings of the code, as reStructuredText and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from hopper.config.reference import plain_text

_LISTS: Final = ("Parameters", "Attributes", "Raises")
_ITEM = re.compile(r"([\w*.]+(?:, [\w*.]+)*): (.*)")
_CODE = re.compile(r"(`[^`]+`)")
_PAGE = re.compile(r"\bdocs/([\w/-]+\.md(?:#[\w-]+)?)")


def convert_docstring(lines: Sequence[str]) -> list[str]:
    """Turn underlined parts (Parameters, Returns, Raises) into rubrics and lists.

    Parameters
    ----------
    lines: of a docstring, without its indentation.
    """
    return list(_converted(lines))


def _converted(lines: Sequence[str]) -> Iterator[str]:
    part = ""
    for place, line in enumerate(lines):
        below = lines[place + 1] if place + 1 < len(lines) else ""
        if line and re.fullmatch(r"-{3,}", below):
            part = line
            yield from (f".. rubric:: {line}", "")
        elif re.fullmatch(r"-{3,}", line):
            continue
        elif part in _LISTS and (item := _ITEM.match(line)):
            name = item[1].replace("*", r"\*")
            yield from ("", f"- **{name}**: {item[2]}")
        elif part in _LISTS and line.startswith("    "):
            yield "  " + line.strip()
        else:
            yield line


def to_markdown(text: str, up: str = "..") -> str:
    """Turn a docstring or a help text into a paragraph of Markdown.

    Parameters
    ----------
    text: with ``code``, roles such as :class:`Name`, and names of pages such as docs/index.md.
    up: the way from the page to the folder ``docs``.
    """
    pieces = _CODE.split(plain_text(text, short=True))
    pieces[::2] = [
        _PAGE.sub(rf"[](<{up}/\1>)", re.sub(r"([*_<\[])", r"\\\1", piece)) for piece in pieces[::2]
    ]
    return "".join(pieces)


def as_sentence(text: str) -> str:
    """Begin a text with a capital letter and end it with a full stop."""
    text = text.strip()
    text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."
