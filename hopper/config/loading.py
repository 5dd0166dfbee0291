"""Read a configuration from a file and overrides. Errors name the key."""

from __future__ import annotations

import difflib
import json
import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from hopper.config.sections import Config
from hopper.errors import ConfigError
from hopper.files.addresses import EXPECTED, is_address

CONFIG_VARIABLE: Final = "HOPPER_CONFIG"
"""The environment variable with the file of the configuration for scripts of a user's own."""
SHORT_NAMES: Final = {"--replay": "--train.replay"}


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file (or a run's ``config.json``) and apply ``--section.key value`` overrides.

    Raises
    ------
    ConfigError: the file cannot be read, or a key is unknown, missing or out of range.
    """
    return make_config(read_values(path), overrides, where=os.fspath(path))


def read_config(
    config: Config | Mapping[str, Any] | str | os.PathLike[str], overrides: Sequence[str] = ()
) -> Config:
    """Check a configuration that a caller gives in any form.

    Parameters
    ----------
    config: the path of a file, a mapping of sections, or a checked configuration.

    Raises
    ------
    ConfigError: it has another type, or :func:`load_config` or :func:`make_config` refuses it.
    """
    if isinstance(config, Config):
        return make_config(config.given(), overrides) if overrides else config
    if isinstance(config, Mapping):
        return make_config(config, overrides)
    if isinstance(config, str | os.PathLike):
        return load_config(config, overrides)
    raise ConfigError(
        "configuration: expected the path of a TOML file, a mapping of sections or a "
        f"hopper.Config, got {type(config).__name__}"
    )


def read_values(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the sections of a TOML or JSON file without checking them.

    Raises
    ------
    ConfigError: the file cannot be read.
    """
    is_json = os.fspath(path).endswith(".json")
    if is_address(path):
        raise ConfigError(f"{path}: cannot read the configuration: {EXPECTED}")
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise ConfigError(f"{path}: cannot read the configuration: expected a file")
        text = Path(path).read_text(encoding="utf-8")
        values = json.loads(text) if is_json else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration: {error.strerror}") from error
    except RecursionError:
        raise ConfigError(f"{path}: not a valid configuration: nested too deeply") from None
    except ValueError as error:
        language = "JSON" if is_json else "TOML"
        raise ConfigError(f"{path}: not valid {language}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected sections, found {type(values).__name__}")
    return values


def make_config(
    values: Mapping[str, Any], overrides: Sequence[str] = (), where: str = "configuration"
) -> Config:
    """Apply ``--section.key value`` overrides to sections, and check the result.

    Raises
    ------
    ConfigError: names every invalid key, what was expected and what came.
    """
    try:
        return Config.model_validate(override(values, overrides, where))
    except ValidationError as error:
        lines = _explain(error)
        raise ConfigError(f"{where}: {'; '.join(lines)}", lines) from error


def change_config(config: Config, **sections: Mapping[str, Any]) -> Config:
    """Make a configuration with other values for some keys.

    Parameters
    ----------
    sections: by section, the new values of its keys.

    Raises
    ------
    ConfigError: names every invalid key, what was expected and what came.
    """
    values = config.given()
    for section, changes in sections.items():
        values[section] = values.get(section, {}) | dict(changes)
    return make_config(values)


def override(
    values: Mapping[str, Any], overrides: Sequence[str], where: str = "configuration"
) -> dict[str, Any]:
    """Copy sections and apply ``--section.key value`` overrides without checking them.

    Raises
    ------
    ConfigError: an override does not have this form.
    """
    merged = {
        section: dict(keys) if isinstance(keys, Mapping) else keys
        for section, keys in values.items()
    }
    words = iter(overrides)
    for word in words:
        name, equals, inline = word.partition("=")
        name = SHORT_NAMES.get(name, name)
        section, dot, key = name.removeprefix("--").partition(".")
        if not name.startswith("--") or not dot or not section or not key:
            raise ConfigError(f"expected --section.key value, got {word!r}")
        text = inline if equals else next(words, None)
        if text is None:
            raise ConfigError(f"{name}: a value is missing")
        keys = merged.setdefault(section, {})
        if not isinstance(keys, dict):
            raise ConfigError(f"{where}: {section}: expected a section, got {keys!r}")
        keys[key] = _parse_value(section, key, text)
    return merged


def _parse_value(section: str, key: str, text: str) -> Any:
    """Read an override as a TOML value, or as text if it is none, or if the key is a text and the
    value is not quoted."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    field = Config.model_fields.get(section)
    keys = getattr(field.annotation, "model_fields", {}) if field is not None else {}
    is_text = key in keys and keys[key].annotation is str
    return text if is_text and not isinstance(value, str) else value


def _explain(error: ValidationError) -> list[str]:
    lines = []
    for problem in error.errors():
        key = ".".join(str(key_part) for key_part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f"{key}: unknown key{_suggest(key)}")
        elif problem["type"] == "missing":
            lines.append(f"{key}: missing")
        elif problem["type"] == "value_error":
            # Checks of the sections name the key within its section.
            prefix = f"{key}." if key else ""
            lines.append(prefix + str(problem["ctx"]["error"]))
        else:
            lines.append(f"{key}: {problem['msg']}, got {problem['input']!r:.200}")
    return lines


def _suggest(unknown: str) -> str:
    """Return "; did you mean ...?" with the nearest keys; "" if none is near."""
    keys = {
        section: list(getattr(field.annotation, "model_fields", {}))
        for section, field in Config.model_fields.items()
    }
    section, _, key = unknown.partition(".")
    if section not in keys:
        near = difflib.get_close_matches(section, keys, n=1)
    else:
        here = keys[section]
        # train.lr stands for train.learning_rate.
        short = [name for name in here if "".join(word[0] for word in name.split("_")) == key]
        close = [f"{section}.{name}" for name in short + difflib.get_close_matches(key, here, n=1)]
        near = [*close, *(f"{other}.{key}" for other in keys if key in keys[other])]
    return f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
