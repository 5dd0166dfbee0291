"""Classes that a configuration names: a built-in by its name, any other as "package.module:Class".

Before any work starts, a class is imported, compared with the protocol of its kind, and its options
are compared with its constructor. Python must be able to import the module: it is installed, or
``PYTHONPATH`` names its folder (docs/howto/plug-ins.md).
"""

from __future__ import annotations

import importlib
import inspect
import json
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from hopper.errors import ConfigError, HopperError

FORM: Final = "package.module:Class"

T = TypeVar("T")


@dataclass(frozen=True)
class PlugIn(Generic[T]):
    """A class that a configuration names, with options for its constructor.

    Attributes
    ----------
    key: the configuration key, for errors.
    name: the name in the configuration.
    kind: the class.
    options: keyword arguments of its constructor, which have been checked.
    """

    key: str
    name: str
    kind: type[Any]
    options: Mapping[str, Any]

    def make(self, **arguments: Any) -> T:
        """Make an instance.

        Parameters
        ----------
        arguments: keyword arguments besides the options, the same for every class of its kind.

        Raises
        ------
        ConfigError: the constructor raised an error; names the key and quotes the error.
        """
        with explain_errors(f"{self.key}: {self.name} cannot be made"):
            instance: T = self.kind(**arguments, **self.options)
        return instance


@contextmanager
def explain_errors(what: str) -> Iterator[None]:
    """Raise whatever a plug-in raises as a ConfigError that begins with ``what``, which names the
    key, and quotes the error. Hopper's own errors pass."""
    try:
        yield
    except HopperError:
        raise
    # A plug-in may raise anything, and the user must look at the key that chose it.
    except Exception as error:
        raise ConfigError(f"{what} ({type(error).__name__}: {error})") from error


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
    """Find the class of a name, and check it and its options without making an instance.

    Parameters
    ----------
    key: the configuration key, such as "train.loss", for errors.
    name: the name of a built-in, or "package.module:Class".
    protocol: the protocol whose public members the class must have.
    built_ins: classes by name.
    options: keyword arguments for the constructor.
    given: names of parameters that Hopper fills, which cannot be options.
    options_key: the key of the options, for errors; "" = ``key`` followed by "_options".
    derives: whether the class must derive from ``protocol``.

    Raises
    ------
    ConfigError: one line that names the key, what was expected and what came.
    """
    if name in built_ins:
        plug_in_class = built_ins[name]
    elif ":" not in name:
        raise ConfigError(f"{key}: expected {describe_choices(built_ins)}; got {name!r}")
    else:
        plug_in_class = import_class(key, name, protocol if derives else object)
        missing = find_missing_members(plug_in_class, protocol)
        if missing:
            raise ConfigError(
                f"{key}: {name}: expected a {protocol.__name__} (docs/howto/plug-ins.md); the "
                f"class lacks {', '.join(missing)}"
            )
    where = options_key or f"{key}_options"
    return PlugIn(
        key, name, plug_in_class, _check_options(where, name, plug_in_class, options, given)
    )


def describe_choices(built_ins: Collection[str]) -> str:
    """Return the names that a key accepts, in words."""
    return " or ".join([", ".join(built_ins), FORM] if built_ins else [FORM])


def is_named(name: str, built_ins: Collection[str]) -> bool:
    """Return whether a name is a built-in's, or of the form "package.module:Class"."""
    module, colon, class_name = name.partition(":")
    return name in built_ins or bool(module and colon and class_name)


def import_class(key: str, name: str, base: type[Any] = object, what: str = "") -> type[Any]:
    """Import the class that "package.module:Class" names.

    Parameters
    ----------
    key: the configuration key, for errors.
    base: the class that it must derive from.
    what: what errors say was expected; "" = a class, or a subclass of ``base``.

    Raises
    ------
    ConfigError: the module cannot be imported, or its name is missing or no such class.
    """
    module_name, _, class_name = name.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
    # The user's module may raise anything, and the user must look at this key.
    except Exception as error:
        raise ConfigError(
            f"{key}: {name}: module {module_name!r} cannot be imported "
            f"({type(error).__name__}: {error})"
        ) from error
    for attribute in class_name.split("."):
        value = getattr(value, attribute, None)
    if value is None:
        raise ConfigError(f"{key}: {name}: module {module_name!r} has no {class_name!r}")
    if not what:
        derived = f"subclass of {base.__module__}.{base.__qualname__}"
        what = "class" if base is object else derived
    if not (isinstance(value, type) and issubclass(value, base)):
        raise ConfigError(f"{key}: {name}: expected a {what}; given {value!r:.200}")
    return value


def find_missing_members(plug_in_class: type[Any], protocol: type[Any]) -> list[str]:
    """Return the public members of a protocol that a class lacks. Methods have their arguments.

    A class need not inherit from the protocol. A method counts as missing if it takes other
    arguments, if it is abstract, or if only the protocol declares it. Properties are not checked,
    since instances may set them.
    """
    missing = []
    for name, declared in _members(protocol).items():
        member = getattr(plug_in_class, name, None)
        is_method = inspect.isfunction(declared)
        text = f"{name}({', '.join(_arguments(declared))})" if is_method else name
        is_only_declared = getattr(member, "__isabstractmethod__", False) or (
            is_method and member is declared and getattr(protocol, "_is_protocol", False)
        )
        is_defined = hasattr(plug_in_class, name) and not is_only_declared
        if not is_defined or (
            is_method and not _accepts(plug_in_class, name, len(_arguments(declared)))
        ):
            missing.append(text)
    return missing


def _members(protocol: type[Any]) -> dict[str, Any]:
    """Return the public members of a protocol's classes, by name. A mere annotation counts as
    None."""
    members: dict[str, Any] = {}
    for base in reversed(protocol.__mro__):
        if base.__module__.partition(".")[0] in ("builtins", "typing", "abc", "torch"):
            continue
        members |= dict.fromkeys(inspect.get_annotations(base))
        members |= base.__dict__
    return {
        name: member
        for name, member in members.items()
        if not name.startswith("_") and not isinstance(member, property)
    }


def _arguments(method: Any) -> list[str]:
    """Return the names of the arguments that a method must accept by position."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return [
        parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty
    ]


def _accepts(plug_in_class: type[Any], name: str, arguments: int) -> bool:
    """Return whether a method of a class's instance can be called with a number of arguments."""
    method = getattr(plug_in_class, name)
    if not callable(method):
        return False
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        # A method in another language may have no signature to compare with.
        return True
    takes_instance = inspect.isfunction(inspect.getattr_static(plug_in_class, name))
    try:
        signature.bind(*[None] * (arguments + takes_instance))
    except TypeError:
        return False
    return True


@lru_cache(maxsize=256)
def _constructor(plug_in_class: type[Any]) -> inspect.Signature:
    """Return the signature of a class, which is asked for whenever a configuration is made."""
    return inspect.signature(plug_in_class)


def _check_options(
    key: str, name: str, plug_in_class: type[Any], options: Mapping[str, Any], given: Sequence[str]
) -> dict[str, Any]:
    """Check options, and that the constructor accepts Hopper's own arguments; convert options to
    the types of its annotations."""
    try:
        # To mypy, a class is not hashable.
        parameters = _constructor(plug_in_class).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return dict(options)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = {
        parameter.name: parameter
        for parameter in parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    refused = [argument for argument in given if argument not in named and not takes_any]
    if refused:
        raise ConfigError(
            f"{key}: {name}: expected a constructor with the parameters {', '.join(given)}; it "
            f"lacks {', '.join(refused)}"
        )
    free = {option: parameter for option, parameter in named.items() if option not in given}
    for option in options:
        if option in given or (option not in free and not takes_any):
            raise ConfigError(
                f"{key}.{option}: {name} takes {', '.join(free) or 'no options'}; got {option!r}"
            )
    missing = [
        option
        for option, parameter in free.items()
        if parameter.default is parameter.empty and option not in options
    ]
    if missing:
        raise ConfigError(f"{key}.{missing[0]}: missing; {name} needs it")
    if not options:
        return {}
    hints: dict[str, Any] = {}
    # An annotation may use names that only type checkers import.
    with suppress(NameError, TypeError, AttributeError):
        hints = typing.get_type_hints(plug_in_class.__init__, include_extras=True)
    return {
        option: _convert_option(f"{key}.{option}", value, hints[option])
        if option in hints
        else value
        for option, value in options.items()
    }


def _convert_option(key: str, value: Any, hint: Any) -> Any:
    """Check an option's value against its annotation, if pydantic can, and convert it."""
    try:
        adapter = TypeAdapter(hint, config=ConfigDict(strict=True))
    except (PydanticSchemaGenerationError, PydanticUserError):
        return value
    try:
        # Strict validation of JSON still turns a list into a tuple, and a text into a path.
        return adapter.validate_json(json.dumps(value))
    except ValidationError as error:
        problem = error.errors()[0]
        path = "".join(f".{key_part}" for key_part in problem["loc"])
        raise ConfigError(f"{key}{path}: {problem['msg']}, got {value!r:.200}") from error
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}: {error}, got {value!r:.200}") from error
