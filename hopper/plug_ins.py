"""Classes that a configuration names: a built-in by its name, any other as "package.module:Class".

A class is found, compared with the protocol of its kind, and its options are compared with its
constructor before any work starts. Modules are found as Python finds them: installed, or through
``PYTHONPATH``. See docs/plug-ins.md.
"""

from __future__ import annotations

import importlib
import inspect
import json
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from hopper.errors import ConfigError, HopperError

FORM: Final = "package.module:Class"

T = TypeVar("T")


@dataclass(frozen=True)
class PlugIn(Generic[T]):
    """A class that a configuration names, and the options that its constructor is called with.

    Attributes
    ----------
    key: of the configuration, for errors.
    name: as the configuration has it.
    kind: the class.
    options: keywords of its constructor, checked.
    """

    key: str
    name: str
    kind: type[Any]
    options: Mapping[str, Any]

    def make(self, **given: Any) -> T:
        """Make an instance from what Hopper gives every class of its kind, and the options.

        Raises
        ------
        ConfigError: the constructor raised an error; names the key and tells the error.
        """
        try:
            made: T = self.kind(**given, **self.options)
        except HopperError:
            raise
        # Whatever somebody else's constructor raises, the key to look at is this one.
        except Exception as error:
            raise ConfigError(
                f"{self.key}: {self.name} cannot be made ({type(error).__name__}: {error})"
            ) from error
        return made


def find_plug_in(
    key: str,
    name: str,
    protocol: type[Any],
    built_ins: Mapping[str, Any],
    options: Mapping[str, Any],
    given: Sequence[str] = (),
    options_key: str = "",
    *,
    derives: bool = False,
) -> PlugIn[Any]:
    """Find the class of a name, and check it and its options; nothing is made of it yet.

    Parameters
    ----------
    key: of the configuration, such as "train.loss", for errors.
    name: that of a built-in, or "package.module:Class".
    protocol: what the class has to have; see :func:`lacking`.
    built_ins: classes by name.
    options: keywords for the constructor.
    given: names of parameters that Hopper fills; they cannot be options.
    options_key: of the options, for errors; "" = ``key`` with "_options" behind it.
    derives: whether the class has to derive from ``protocol``.

    Raises
    ------
    ConfigError: one line that names the key, what was expected and what came.
    """
    if name in built_ins:
        kind = built_ins[name]
    elif ":" not in name:
        raise ConfigError(f"{key}: expected {expected(built_ins)}; got {name!r}")
    else:
        kind = import_class(key, name, protocol if derives else object)
        lacks = lacking(kind, protocol)
        if lacks:
            raise ConfigError(
                f"{key}: {name}: expected a {protocol.__name__} (docs/plug-ins.md); the class "
                f"lacks {', '.join(lacks)}"
            )
    where = options_key or f"{key}_options"
    return PlugIn(key, name, kind, _check_options(where, name, kind, options, given))


def find_plug_ins(
    key: str,
    names: Sequence[str],
    protocol: type[Any],
    built_ins: Mapping[str, Any],
    options: Sequence[Mapping[str, Any]],
    given: Sequence[str] = (),
    *,
    derives: bool = False,
) -> list[PlugIn[Any]]:
    """:func:`find_plug_in` of every name of a list.

    Parameters
    ----------
    options: one for each name, or none; of the key with "_options" behind it.
    """
    return [
        find_plug_in(
            f"{key}[{index}]",
            name,
            protocol,
            built_ins,
            own,
            given,
            f"{key}_options[{index}]",
            derives=derives,
        )
        for index, (name, own) in enumerate(zip(names, options or [{}] * len(names), strict=True))
    ]


def expected(built_ins: Collection[str]) -> str:
    """What a key accepts, in words."""
    return " or ".join([", ".join(built_ins), FORM] if built_ins else [FORM])


def check_form(key: str, name: str, built_ins: Collection[str]) -> None:
    """Refuse what is neither a built-in's name nor of the form of a class of one's own.

    Raises
    ------
    ValueError: names the key, what was expected and what came.
    """
    module, colon, kind = name.partition(":")
    if name not in built_ins and not (module and colon and kind):
        raise ValueError(f"{key}: expected {expected(built_ins)}; got {name!r}")


def import_class(key: str, name: str, base: type[Any] = object, what: str = "") -> type[Any]:
    """The class that "package.module:Class" names.

    Parameters
    ----------
    key: of the configuration, for errors.
    base: what it has to be a subclass of.
    what: it is, for errors; "" = a class, or a subclass of ``base``.

    Raises
    ------
    ConfigError: the module cannot be imported, has no such name, or it names something else.
    """
    module_name, _, class_name = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    # Whatever the user's module raises while it is imported, the key to look at is this one.
    except Exception as error:
        raise ConfigError(
            f"{key}: {name}: module {module_name!r} cannot be imported "
            f"({type(error).__name__}: {error})"
        ) from error
    for part in class_name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise ConfigError(f"{key}: {name}: module {module_name!r} has no {class_name!r}")
    if not what:
        derived = f"subclass of {base.__module__}.{base.__qualname__}"
        what = "class" if base is object else derived
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{key}: {name}: expected a {what}; given {found!r:.200}")
    return found


def lacking(kind: type[Any], protocol: type[Any]) -> list[str]:
    """The public members of a protocol that a class lacks, methods as they have to be called.

    A class need not inherit from the protocol. A method that takes other arguments is lacking, and
    so is one that a protocol merely declares, or that is abstract. Properties are what an instance
    has, and are left to whoever makes one.
    """
    lacks = []
    for name, declared in _members(protocol).items():
        found = getattr(kind, name, None)
        is_method = inspect.isfunction(declared)
        told = f"{name}({', '.join(_arguments(declared))})" if is_method else name
        is_left = getattr(found, "__isabstractmethod__", False) or (
            is_method and found is declared and getattr(protocol, "_is_protocol", False)
        )
        is_there = hasattr(kind, name) and not is_left
        if not is_there or (is_method and not _accepts(kind, name, len(_arguments(declared)))):
            lacks.append(told)
    return lacks


def _members(protocol: type[Any]) -> dict[str, Any]:
    """The public members of a protocol's classes, by name; what is merely annotated is None."""
    members: dict[str, Any] = {}
    for each in reversed(protocol.__mro__):
        if each.__module__.partition(".")[0] in ("builtins", "typing", "abc", "torch"):
            continue
        members |= dict.fromkeys(inspect.get_annotations(each))
        members |= each.__dict__
    return {
        name: found
        for name, found in members.items()
        if not name.startswith("_") and not isinstance(found, property)
    }


def _arguments(method: Any) -> list[str]:
    """Names of the arguments that a method has to accept by position."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return [each.name for each in parameters if each.default is inspect.Parameter.empty]


def _accepts(kind: type[Any], name: str, arguments: int) -> bool:
    """Whether a method of a class's instance can be called with so many arguments."""
    method = getattr(kind, name)
    if not callable(method):
        return False
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        # Written in another language, and not described.
        return True
    takes_instance = inspect.isfunction(inspect.getattr_static(kind, name))
    try:
        signature.bind(*[None] * (arguments + takes_instance))
    except TypeError:
        return False
    return True


def _check_options(
    key: str, name: str, kind: type[Any], options: Mapping[str, Any], given: Sequence[str]
) -> dict[str, Any]:
    """The options as the constructor's annotations have them.

    Raises
    ------
    ConfigError: an option is unknown, missing or of another type; Hopper's own argument is not
        accepted.
    """
    try:
        parameters = inspect.signature(kind).parameters
    except (TypeError, ValueError):
        return dict(options)
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    named = {
        each.name: each
        for each in parameters.values()
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    }
    refused = [each for each in given if each not in named and not takes_any]
    if refused:
        raise ConfigError(
            f"{key}: {name}: expected a constructor with the parameters {', '.join(given)}; it "
            f"lacks {', '.join(refused)}"
        )
    free = {each: own for each, own in named.items() if each not in given}
    for option in options:
        if option in given or (option not in free and not takes_any):
            raise ConfigError(
                f"{key}.{option}: {name} takes {', '.join(free) or 'no options'}; got {option!r}"
            )
    missing = [e for e, own in free.items() if own.default is own.empty and e not in options]
    if missing:
        raise ConfigError(f"{key}.{missing[0]}: missing; {name} needs it")
    hints = _hints(kind) if options else {}
    return {each: _checked(f"{key}.{each}", value, hints) for each, value in options.items()}


def _hints(kind: type[Any]) -> dict[str, Any]:
    """The constructor's annotations by parameter; none where they cannot be read."""
    try:
        return typing.get_type_hints(kind.__init__, include_extras=True)
    # Names that only type checkers import.
    except (NameError, TypeError, AttributeError):
        return {}


def _checked(key: str, value: Any, hints: Mapping[str, Any]) -> Any:
    """An option's value, compared with its annotation, if that is one that can be."""
    name = key.rpartition(".")[2]
    if name not in hints:
        return value
    try:
        adapter = TypeAdapter(hints[name], config=ConfigDict(strict=True))
    except (PydanticSchemaGenerationError, PydanticUserError):
        return value
    try:
        # As JSON: a list is then a tuple, too, and a text a path.
        return adapter.validate_json(json.dumps(value))
    except ValidationError as error:
        problem = error.errors()[0]
        place = "".join(f".{each}" for each in problem["loc"])
        raise ConfigError(f"{key}{place}: {problem['msg']}, got {value!r:.200}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: {error}, got {value!r:.200}") from error
