"""The versions that ``hopper --version`` prints."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Final

import hopper

_LIBRARIES: Final = ("torch", "numpy")


def list_versions() -> str:
    """List in one line the versions of Hopper, Python and the libraries that results depend on.

    It reads the metadata of the libraries and imports nothing.
    """
    versions = [f"hopper {hopper.__version__}", f"Python {platform.python_version()}"]
    return ", ".join([*versions, *map(_version_of, _LIBRARIES)])


def _version_of(library: str) -> str:
    try:
        return f"{library} {metadata.version(library)}"
    except metadata.PackageNotFoundError:
        return f"{library} is not installed"
