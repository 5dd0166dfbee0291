"""Refuses addresses, such as ``s3://bucket/folder``, where a path on this machine is expected."""

from __future__ import annotations

import os
import re
from typing import Final

from hopper.errors import RequestError

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How an address begins. A path object has dropped the second slash."""
EXPECTED: Final = "expected a path on this machine, not an address"


def is_address(path: str | os.PathLike[str]) -> bool:
    """Return whether a path begins with a scheme. A folder of such a name is reached by its whole
    path."""
    return _SCHEME.match(os.fspath(path)) is not None


def refuse_address(path: str | os.PathLike[str]) -> None:
    """Refuse an address.

    Raises
    ------
    RequestError: names the address.
    """
    if is_address(path):
        raise RequestError(f"{os.fspath(path)}: {EXPECTED}")
