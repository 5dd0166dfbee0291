"""The security of a run's connections, from the section ``[cluster]``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cache_server.errors import CacheServerError
from cache_server.security import Security
from hopper.config import Config
from hopper.errors import ConfigError

FILES: Final = ("tls_ca", "tls_certificate", "tls_key", "token_file")
"""Keys of ``[cluster]`` that name files, and options of ``python -m cache_server``."""


def security_of(config: Config) -> Security:
    """Return the security of a run's connections to feature servers, the same at both ends."""
    return Security(**_files(config), insecure=config.cluster.insecure)


def security_words(config: Config) -> Iterator[str]:
    """Yield the command-line arguments that tell a feature server its security."""
    for key, value in _files(config).items():
        if value:
            yield f"--{key.replace('_', '-')}={value}"
    if config.cluster.insecure:
        yield "--insecure"


def absolute_files(config: Config) -> dict[str, str]:
    """Return the keys of ``[cluster]`` that name files, with absolute paths."""
    return {key: value and os.path.abspath(value) for key, value in _files(config).items()}


def _files(config: Config) -> dict[str, str]:
    return {key: getattr(config.cluster, key) for key in FILES}


def check_security(config: Config) -> None:
    """Refuse unusable files and unprotected connections to feature servers."""
    security = security_of(config)
    with config_errors():
        if not config.cluster.servers:
            security.check_server("127.0.0.1:0")
        security.check_client(config.cluster.servers)


@contextmanager
def config_errors() -> Iterator[None]:
    """Raise the errors of checking connections as a :class:`ConfigError` that names the key."""
    try:
        yield
    except CacheServerError as error:
        raise ConfigError(f"cluster.{error}") from error
