"""Addresses, such as ``s3://bucket/folder``, beside paths on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from hopper.errors import HopperError, RequestError, StorageError

if TYPE_CHECKING:
    from upath import UPath

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""How an address begins. A path object has dropped the second slash."""
_PASSWORD: Final = re.compile(
    r"(://[^:/@\s'\"]*):[^\s'\"]+(?=@)"
    r"|([?&][\w-]*(?:password|sig|signature|token|secret|key)[\w-]*=)[^&\s'\"]*",
    re.I,
)
AnyPath: TypeAlias = "Path | UPath"
"""A path on this machine, or on the file system of an address."""
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


def path_of(path: str | os.PathLike[str] | UPath) -> AnyPath:
    """Return the absolute path on this machine, or the path on the file system of an address, which
    fsspec finds by its scheme, with credentials as that file system takes them.

    Raises
    ------
    RequestError: nothing that is installed reads such addresses, or nothing answers there.
    """
    text = path if isinstance(path, str) else str(path)
    if not is_address(text):
        return Path(text).absolute()
    from upath import UPath

    try:
        found = UPath(text)
        # Others may have written since this process listed a folder.
        found.fs.invalidate_cache()
    except Exception as error:  # a package that is missing, or a host that does not answer
        raise RequestError(
            without_password(f"{text}: expected an address that fsspec can reach: {error}")
        ) from error
    return Path(found.path) if found.protocol in ("file", "local") else found


@contextmanager
def remote_errors(path: AnyPath) -> Iterator[None]:
    """Raise whatever the file system of an address raises as a :class:`StorageError` that names the
    address, without a password. Errors of paths on this machine stay as they are."""
    try:
        yield
    except HopperError:
        raise
    except Exception as error:
        if isinstance(path, Path):
            raise
        # Botocore and others have errors of their own.
        reason = str(error) or type(error).__name__
        raise StorageError(without_password(f"{path}: {reason}")) from error


@contextmanager
def hide_passwords() -> Iterator[None]:
    """Raise Hopper's errors without the passwords of addresses in their texts; also as a
    decorator."""
    try:
        yield
    except HopperError as error:
        text = without_password(str(error))
        if text == str(error):
            raise
        raise type(error)(text) from None


def without_password(text: str) -> str:
    """Return a text without the passwords of addresses in it."""
    return _PASSWORD.sub(r"\1\2", text)
