"""The reference of the configuration, made from the classes that check it."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from docstrings import as_sentence, to_markdown

from hopper.config import Config
from hopper.config.model import MODEL_OPTIONS, Model

_PLAIN: Final = {
    "str": "text",
    "bool": "true or false",
    "int": "whole number",
    "float": "number",
    "Positive": "whole number above 0",
    "NonNegative": "whole number from 0",
    "Seed": "whole number from 0",
    "Options": "table of keywords",
    "None": "nothing",
}
_BOUNDS: Final = {"gt": "above", "ge": "from", "lt": "below", "le": "up to"}


def configuration_reference() -> str:
    """Every section and key: its kind of value, its default, and what it means."""
    lines: list[str] = []
    for name, field in Config.model_fields.items():
        section: Any = field.annotation
        lines += ["", f"## `[{name}]`", "", _about_section(section), ""]
        lines += _keys(name, section)
        if section is Model:
            for model, options in MODEL_OPTIONS.items():
                lines += ["", f"### Options of `{model}`", "", _about_section(options), ""]
                lines += _keys(name, options)
    return "\n".join(lines)


def _about_section(section: type) -> str:
    text = inspect.getdoc(section) or ""
    return as_sentence(to_markdown(text.partition("``: ")[2] or text))


def _keys(name: str, section: Any) -> Iterator[str]:
    """The keys that a class itself has, not those that it inherits."""
    source = textwrap.dedent(inspect.getsource(section))
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef)
    for place, node in enumerate(definition.body):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        key = node.target.id
        if key not in section.model_fields:
            continue
        below = definition.body[place + 1 : place + 2]
        text = _text_of(below[0]) if below else ""
        value = as_sentence(f"{describe_kind(node.annotation)}, {_default_of(section, key)}")
        yield from (f"`{name}.{key}`", f": {value}")
        if text:
            yield from ("", f"  {as_sentence(to_markdown(text))}")
        yield ""


def _text_of(node: ast.stmt) -> str:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return str(node.value.value) if is_text else ""  # type: ignore[attr-defined]


def _default_of(section: Any, key: str) -> str:
    field = section.model_fields[key]
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    return "no default" if default is None else f"default `{json.dumps(default)}`"


def describe_kind(node: ast.expr) -> str:
    """Say in words what an annotation allows."""
    if isinstance(node, ast.BinOp):
        return f"{describe_kind(node.left)} or {describe_kind(node.right)}"
    if isinstance(node, ast.Constant):
        return _PLAIN.get(str(node.value), str(node.value))
    if isinstance(node, ast.Name):
        return _PLAIN[node.id]
    assert isinstance(node, ast.Subscript)
    assert isinstance(node.value, ast.Name)
    inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    match node.value.id:
        case "Literal":
            values = [f"`{json.dumps(ast.literal_eval(each))}`" for each in inner]
            return " or ".join(filter(None, [", ".join(values[:-1]), values[-1]]))
        case "Annotated":
            return describe_kind(inner[0]) + _bounds(inner[1])
        case "list":
            return f"list (each: {describe_kind(inner[0])})"
        case _:
            return f"table (each: {describe_kind(inner[1])})"


def _bounds(call: ast.expr) -> str:
    assert isinstance(call, ast.Call)
    found = [
        f"{_BOUNDS[word.arg]} {ast.literal_eval(word.value):g}"
        for word in call.keywords
        if word.arg in _BOUNDS
    ]
    return f" {' and '.join(found)}" if found else ""
