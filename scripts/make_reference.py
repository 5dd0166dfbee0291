#!/usr/bin/env python
"""Write the lists of commands, keys and names into the reference's pages, from the code.

usage: python scripts/make_reference.py

A list stands in a page of docs/reference between `<!-- made from the code -->` and its end. A test
compares what is there with what this makes.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import hopper  # noqa: E402
from hopper.cli.commands import build_parser  # noqa: E402
from hopper.config.model import MODEL_OPTIONS  # noqa: E402
from hopper.config.reference import (  # noqa: E402
    Key,
    describe_section,
    list_keys,
    plain_text,
    sections,
)

BEGIN, END = "<!-- made from the code -->\n", "<!-- end -->"
_SECTIONS: Final = ("Parameters", "Attributes", "Raises", "Returns", "Yields", "Examples")
_ITEM = re.compile(r"([\w*.]+(?:, [\w*.]+)*): (.*)", re.S)
_OWN: Final = ("self", "cls")
_WIDTH: Final = 80
_CODE = re.compile(r"(`[^`]+`)")
_PAGE = re.compile(r"\bdocs/([\w/-]+\.md(?:#[\w-]+)?)")


def commands() -> Iterator[str]:
    """Every command: how it is called, what it does, and its options."""
    return _command(build_parser(), "")


def _command(parser: argparse.ArgumentParser, summary: str) -> Iterator[str]:
    words = parser.prog.split()
    children = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if len(words) > 1:
        yield from (f"{'#' * min(len(words), 4)} `{parser.prog}`", "")
        for text in dict.fromkeys(filter(None, (summary, parser.description))):
            yield from (_sentence(text), "")
        if not children:
            parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=88)
            usage = parser.format_usage().removeprefix("usage: ").rstrip()
            yield from ("```text", usage, "```", "")
            yield from (*_options(parser), "")
    for command in children:
        helps = {choice.dest: choice.help or "" for choice in command._choices_actions}
        for name, child in command.choices.items():
            yield from _command(child, helps.get(name, ""))


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = argparse.HelpFormatter(parser.prog, width=10_000)
    for action in parser._actions:
        if action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
            text = formatter._expand_help(action) if action.help else ""
            text = text or ("required" if action.required and action.option_strings else "")
            if text:
                yield f"- `{formatter._format_action_invocation(action)}`: {_sentence(text)}"


def keys() -> Iterator[str]:
    """Every section and key: its kind of value, its default, and what it means."""
    all_keys = list_keys()
    for name, section in sections().items():
        yield from (f"## `[{name}]`", "", _inline(describe_section(section)), "")
        for key in all_keys:
            if key.name.startswith(f"{name}."):
                yield from _key(key)
        yield ""


def _key(key: Key) -> Iterator[str]:
    value = f"`{key.type}`" if '"' in key.type else key.type
    default = "required" if key.is_required else f"default `{key.default_text}`"
    facts = ", ".join(filter(None, [value, key.bounds, default]))
    option = key.name.removeprefix("model.")
    models = [model for model, options in MODEL_OPTIONS.items() if option in options.model_fields]
    if key.name.startswith("model.") and models:
        facts += f"; of {', '.join(f'`{model}`' for model in models)}"
    yield f"- **`{key.name}`** ({facts})" + (
        f": {_inline(key.description)}" if key.description else ""
    )


def names() -> Iterator[str]:
    """Every name of ``hopper.__all__``, with its signature and docstring."""
    things = {name: getattr(hopper, name) for name in hopper.__all__}
    kinds: dict[str, Callable[[Any], bool]] = {
        "Functions": inspect.isfunction,
        "Classes": lambda thing: inspect.isclass(thing) and not issubclass(thing, Exception),
        "Modules": lambda thing: isinstance(thing, ModuleType),
        "Errors": lambda thing: inspect.isclass(thing) and issubclass(thing, Exception),
    }
    for kind, is_kind in kinds.items():
        yield from (f"## {kind}", "")
        for name, thing in things.items():
            if is_kind(thing):
                yield from _name(f"hopper.{name}", thing)


def _name(name: str, thing: Any) -> Iterator[str]:
    yield from (f"### {name}", "")
    is_class = inspect.isclass(thing) and not issubclass(thing, Exception)
    # The keys of a configuration have a page of their own.
    is_class &= name != "hopper.Config"
    has_signature = inspect.isfunction(thing)
    if is_class:
        has_signature = "__init__" in vars(thing) or hasattr(thing, "__dataclass_fields__")
    if has_signature:
        yield from ("```text", f"{name}{_signature(thing)}", "```", "")
    yield from (*_docstring(thing), "")
    if is_class:
        members = [*_members(thing)]
        yield from (*members, "") if members else ()


def _members(thing: type) -> Iterator[str]:
    for name, member in vars(thing).items():
        function = getattr(member, "__func__", getattr(member, "fget", member))
        function = getattr(function, "func", function)
        if name.startswith("_") or not inspect.isroutine(function) or not function.__doc__:
            continue
        given = [each for each in inspect.signature(function).parameters if each not in _OWN]
        call = "" if isinstance(member, property) else f"({', '.join(given)})"
        yield f"- `{name}{call}`: {_inline(function.__doc__.partition(chr(10) * 2)[0])}"


def _signature(function: Any) -> str:
    """The parameters of a function, each on a line if all of them are wide."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.name not in _OWN]
    words, kinds = [*map(str, own)], [parameter.kind for parameter in own]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        words.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    returned = signature.return_annotation
    end = f") -> {returned}" if isinstance(returned, str) else ")"
    text = f"({', '.join(words)}{end}"
    if len(text) > _WIDTH:
        text = "(\n" + "".join(f"    {word},\n" for word in words) + end
    # Annotations are texts, which are shown with quotes.
    text = re.sub(r": (['\"])(.*?)\1", r": \2", text)
    return re.sub(r"<function .*? at 0x\w+>", "...", text)


def _docstring(thing: Any) -> Iterator[str]:
    """The paragraphs of a docstring, and the lists of its underlined parts."""
    part = ""
    for block in inspect.cleandoc(thing.__doc__ or "").split("\n\n"):
        lines = block.splitlines()
        if len(lines) > 1 and re.fullmatch(r"-{3,}", lines[1]):
            part, lines = lines[0], lines[2:]
            yield from ("", f"**{part}**", "")
        if not lines:
            continue
        if part not in _SECTIONS or part == "Examples" or lines[0].startswith("    "):
            is_code = lines[0].startswith(("    ", ">>>"))
            text = ["```python", *map(str.strip, lines), "```"] if is_code else [_inline(block)]
            yield from ("", *text) if not part else (*text, "")
            continue
        # A line that is not indented begins an item.
        for item in re.split(r"\n(?=\S)", "\n".join(lines)):
            name = _ITEM.match(item)
            text = f"`{name[1]}`: {_inline(name[2])}" if name else _inline(item)
            yield f"- {text}"


def _inline(text: str) -> str:
    """Turn a docstring or a help text into a paragraph, with roles as code, and names of pages such
    as docs/index.md as links."""
    pieces = _CODE.split(plain_text(text, short=True))
    pieces[::2] = [
        _PAGE.sub(r"[\1](../\1)", re.sub(r"([*_<\[])", r"\\\1", piece)) for piece in pieces[::2]
    ]
    return "".join(pieces)


def _sentence(text: str) -> str:
    """Begin a text with a capital letter and end it with a full stop."""
    text = _inline(text).strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


LISTS: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "commands.md": commands,
    "configuration.md": keys,
    "api.md": names,
}
"""by page of docs/reference"""


def fill(page: str) -> str:
    """Return a page of docs/reference with its list made anew."""
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    made = re.sub(r"\n{3,}", "\n\n", "\n".join(LISTS[page]()).strip())
    return f"{before}{BEGIN}\n{made}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    for page in LISTS:
        (ROOT / "docs" / "reference" / page).write_text(fill(page), encoding="utf-8")
