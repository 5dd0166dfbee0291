"""All keys of a configuration with type, bounds, default and meaning, read from the sections.

What a key means is the text below it in :mod:`hopper.config.sections` and
:mod:`hopper.config.model`. ``hopper config`` and the reference page are made of what is here.
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
"""by type: of one, of several"""
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
    """One key of a configuration.

    Attributes
    ----------
    name: with its section, such as "train.epochs".
    type: in words, such as "whole number".
    bounds: in words, such as "above 0, below 2**31"; "" = none.
    default: as the loader fills it in; None where the key is required, and where it is not set.
    description: what it means, in one line. Names in it stand between single backquotes.
    """

    name: str
    type: str
    bounds: str
    default: Any
    is_required: bool
    description: str

    @property
    def default_text(self) -> str:
        """The default as TOML has it; "required" or "not set" where there is none."""
        if self.is_required:
            return "required"
        return "not set" if self.default is None else json.dumps(self.default, ensure_ascii=False)


def list_keys() -> list[Key]:
    """All keys, section by section, in the order in which the sections have them."""
    return [
        _make_key(f"{name}.{key}", kind, key, field)
        for name, kind in sections().items()
        for key, field in kind.model_fields.items()
    ]


def sections() -> dict[str, type[Section]]:
    """The class of every section, by its name in the file."""
    found = {}
    for name, field in Config.model_fields.items():
        assert isinstance(field.annotation, type)
        assert issubclass(field.annotation, Section)
        found[name] = field.annotation
    return found


def describe_section(kind: type[Section]) -> str:
    """What a section is about, in one line."""
    return _plain(inspect.getdoc(kind) or "").partition(": ")[2]


def make_schema() -> dict[str, Any]:
    """A JSON schema of configurations, with a description of every section and key.

    It says of each key by itself what the loader accepts. What the loader compares between keys,
    and with the graph, is beyond a schema.
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


def _make_key(name: str, kind: type[Section], key: str, field: FieldInfo) -> Key:
    is_required = field.is_required()
    default = None if is_required else field.get_default(call_default_factory=True)
    of_type, bounds = _explain_type(field.annotation, field.metadata)
    return Key(name, of_type, bounds, default, is_required, _description(kind, key))


def _explain_type(
    kind: Any, metadata: Sequence[Any] = (), several: bool = False
) -> tuple[str, str]:
    """A type in words, and the bounds of what it is made of.

    Parameters
    ----------
    metadata: pydantic's, of the type as a whole.
    several: whether the words are for many values of it.
    """
    origin, inner = get_origin(kind), get_args(kind)
    bounds = _explain_bounds(metadata)
    if origin is Annotated:
        given = [each.metadata if isinstance(each, FieldInfo) else [each] for each in inner[1:]]
        return _explain_type(inner[0], [*metadata, *itertools.chain(*given)], several)
    if origin is Literal:
        return " | ".join(map(json.dumps, inner)), bounds
    if origin in (Union, types.UnionType):
        parts = [_explain_type(each, (), several) for each in inner if each is not type(None)]
        words, of_parts = zip(*parts, strict=True)
        return " or ".join(words), _join(bounds, *of_parts)
    if origin is list:
        noun, of_entries = _explain_type(inner[0], (), True)
        return f"{'lists' if several else 'list'} of {noun}", _join(bounds, of_entries)
    if origin is dict:
        noun, of_entries = _explain_type(inner[1], (), True)
        return f"{'tables' if several else 'table'} of {noun}", _join(bounds, of_entries)
    return _NOUNS[kind][several], bounds


def _explain_bounds(metadata: Sequence[Any]) -> str:
    told = [
        text.format(_POWERS.get(bound, f"{bound:g}"))
        for each in metadata
        for name, text in _BOUNDS.items()
        if (bound := getattr(each, name, None)) is not None
    ]
    if any(getattr(each, "allow_inf_nan", True) is False for each in metadata):
        told.append("finite")
    return ", ".join(told)


def _join(*bounds: str) -> str:
    return ", ".join(filter(None, bounds))


def _description(kind: type[Section], key: str) -> str:
    """The text below a key, in its section or in the first of the classes that this derives
    from."""
    for each in kind.__mro__:
        if each is not Section and issubclass(each, Section) and key in _texts(each):
            return _texts(each)[key]
    return ""


@cache
def _texts(kind: type[Section]) -> dict[str, str]:
    """By key, the text below it in a class's own source."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for key, text in itertools.pairwise(definition.body):
        if (
            isinstance(key, ast.AnnAssign)
            and isinstance(key.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            found[key.target.id] = _plain(text.value.value)
    return found


def _plain(text: str) -> str:
    """A docstring's text in one line, without roles, names between single backquotes."""
    return " ".join(_ROLE.sub(r"`\1`", text).replace("``", "`").split())
