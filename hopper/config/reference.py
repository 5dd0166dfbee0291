"""Type, bounds, default and meaning of all keys, read from the classes of the sections.

The text below a key, in the module of its section, says what it means. ``hopper config``, the JSON
schema and the reference page show these texts.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import textwrap
import types
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from hopper.config.bounds import COUNTS, SEEDS
from hopper.config.section import Section
from hopper.config.sections import Config

_NOUNS: Final[dict[Any, tuple[str, str]]] = {
    str: ("text", "texts"),
    int: ("whole number", "whole numbers"),
    float: ("number", "numbers"),
    bool: ("true or false", "true or false"),
    Any: ("any value", "values of any type"),
}
"""The words for one value and for several values, by type."""
_BOUNDS: Final = {
    "gt": "above {}",
    "ge": "at least {}",
    "lt": "below {}",
    "le": "at most {}",
    "min_length": "at least {} of them",
}
_POWERS: Final = {COUNTS: "2**31", SEEDS: "2**63"}
_ROLE: Final = re.compile(r":\w+:`~?([^`]+)`")


@dataclass(frozen=True)
class Key:
    """A key of a configuration.

    Attributes
    ----------
    name: the section and the key, such as "train.epochs".
    type: the type in words, such as "whole number".
    bounds: the bounds in words, such as "above 0, below 2**31". "" = none.
    default: what the loader fills in. None if the key is required, or not set by default.
    is_required: whether a configuration must set the key.
    description: what the key means, in one line. Names are between single backquotes.
    """

    name: str
    type: str
    bounds: str
    default: Any
    is_required: bool
    description: str

    @property
    def default_text(self) -> str:
        """The default in TOML, or "required" or "not set" if there is none."""
        if self.is_required:
            return "required"
        return "not set" if self.default is None else json.dumps(self.default, ensure_ascii=False)


def list_keys() -> list[Key]:
    """List all keys, section by section, in the order of their definitions: first those of all
    models and engines, then those of one."""
    keys = []
    for name, section in sections().items():
        fields = section.model_fields
        for key in sorted(fields, key=lambda key: key not in section.__annotations__):
            field, is_required = fields[key], fields[key].is_required()
            default = None if is_required else field.get_default(call_default_factory=True)
            of_type, bounds = _explain_type(field.annotation, field.metadata)
            meaning = _texts(section).get(key, "")
            keys.append(Key(f"{name}.{key}", of_type, bounds, default, is_required, meaning))
    return keys


def sections() -> dict[str, type[Section]]:
    """Return the class of each section, by the section's name."""
    classes = {}
    for name, field in Config.model_fields.items():
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, Section)
        classes[name] = field.annotation
    return classes


def describe_section(section: type[Section]) -> str:
    """Return the description of a section, in one line."""
    return plain_text(inspect.getdoc(section) or "").partition(": ")[2]


def make_schema() -> dict[str, Any]:
    """Make a JSON schema of configurations that describes every section and key.

    For each single key, the schema accepts what the loader accepts. A schema cannot express rules
    that compare keys with each other or with the graph.
    """
    schema = Config.model_json_schema()
    schema |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Hopper"}
    texts = {key.name: key.description for key in list_keys()}
    for name, kind in sections().items():
        schema["properties"][name].pop("default", None)
        section = schema["$defs"][kind.__name__]
        section["description"] = describe_section(kind)
        for key, value in section["properties"].items():
            value.pop("title", None)
            value["description"] = texts[f"{name}.{key}"]
    return schema


def _explain_type(
    annotation: Any, metadata: Sequence[Any] = (), several: bool = False
) -> tuple[str, str]:
    """Describe a type in words, for one value or several, and its bounds, which pydantic stores in
    ``metadata``, with those of its parts."""
    origin, inner = get_origin(annotation), get_args(annotation)
    bounds = _explain_bounds(metadata)
    if origin is Annotated:
        lists = [item.metadata if isinstance(item, FieldInfo) else [item] for item in inner[1:]]
        return _explain_type(inner[0], [*metadata, *itertools.chain(*lists)], several)
    if origin is Literal:
        return " | ".join(map(json.dumps, inner)), bounds
    if origin in (Union, types.UnionType):
        parts = [_explain_type(part, (), several) for part in inner if part is not type(None)]
        words, of_parts = zip(*parts, strict=True)
        return " or ".join(words), ", ".join(filter(None, (bounds, *of_parts)))
    if origin in (list, dict):
        noun, of_entries = _explain_type(inner[-1], (), True)
        kind = f"{'list' if origin is list else 'table'}{'s' * several}"
        return f"{kind} of {noun}", ", ".join(filter(None, (bounds, of_entries)))
    return _NOUNS[annotation][several], bounds


def _explain_bounds(metadata: Sequence[Any]) -> str:
    bounds = [
        text.format(_POWERS.get(bound, f"{bound:g}"))
        for constraint in metadata
        for name, text in _BOUNDS.items()
        if (bound := getattr(constraint, name, None)) is not None
    ]
    if any(getattr(constraint, "allow_inf_nan", True) is False for constraint in metadata):
        bounds.append("finite")
    return ", ".join(bounds)


@cache
def _texts(section: type[Section]) -> dict[str, str]:
    """Return the texts below the keys of a class and of its bases, by key."""
    texts: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if not issubclass(base, Section):
            continue
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(definition, ast.ClassDef)
        for pair in itertools.pairwise(definition.body):
            match pair:
                case (
                    ast.AnnAssign(target=ast.Name(id=key)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    texts[key] = plain_text(text)
    return texts


def plain_text(text: str, short: bool = False) -> str:
    """Write a docstring in one line, with names between single backquotes and without roles.

    Parameters
    ----------
    short: whether only the last part of a role's dotted name stays.
    """

    def name(role: re.Match[str]) -> str:
        return f"`{role[1].rpartition('.')[2] if short else role[1]}`"

    return " ".join(_ROLE.sub(name, text).replace("``", "`").split())
