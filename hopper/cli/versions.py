"""The versions that ``hopper --version`` prints."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Final

import hopper

_LIBRARIES: Final = ("torch", "numpy")


def list_versions() -> str:
    """The versions of Hopper, Python and the libraries that results depend on, in one line.

    The libraries' own metadata is read. Nothing is imported.
    """
    told = [f"hopper {hopper.__version__}", f"Python {platform.python_version()}"]
    return ", ".join([*told, *map(_version_of, _LIBRARIES)])


def _version_of(library: str) -> str:
    try:
        return f"{library} {metadata.version(library)}"
    except metadata.PackageNotFoundError:
        return f"{library} is not installed"
