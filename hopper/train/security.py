"""The security of a run's connections, from the section ``[cluster]``."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from typing import Final

import psutil

from cache_server.errors import SecurityError
from cache_server.security import Security
from hopper.config import Config
from hopper.errors import ConfigError

FILES: Final = ("tls_ca", "tls_certificate", "tls_key", "token_file")
"""Keys of ``[cluster]`` that name files, and options of ``python -m cache_server``."""


def security_of(config: Config) -> Security:
    """Return the security of a run's connections to feature servers, the same at both ends."""
    cluster = config.cluster
    return Security(**{key: getattr(cluster, key) for key in FILES}, insecure=cluster.insecure)


def security_words(config: Config) -> Iterator[str]:
    """Yield the command-line arguments that tell a feature server its security."""
    for key in FILES:
        value = getattr(config.cluster, key)
        if value:
            yield f"--{key.replace('_', '-')}={value}"
    if config.cluster.insecure:
        yield "--insecure"


def absolute_files(config: Config) -> dict[str, str]:
    """Return the keys of ``[cluster]`` that name files, with absolute paths."""
    files = {key: getattr(config.cluster, key) for key in FILES}
    return {key: value and os.path.abspath(value) for key, value in files.items()}


def check_security(config: Config) -> None:
    """Refuse unusable files and unprotected connections to feature servers.

    Raises
    ------
    ConfigError: names the key, what was expected and what came.
    """
    security = security_of(config)
    try:
        if not config.cluster.servers:
            security.check_server("127.0.0.1:0")
        security.check_client(config.cluster.servers)
    except SecurityError as error:
        raise ConfigError(f"cluster.{error}") from error


def check_network_of_ranks(config: Config, ranks: int | None = None) -> None:
    """Refuse that this rank talks to other ranks through a public address.

    Messages between ranks are neither encrypted nor authenticated.

    Parameters
    ----------
    ranks: number of ranks; None = the value in torchrun's environment.

    Raises
    ------
    ConfigError: names the address.
    """
    world = int(os.environ.get("WORLD_SIZE", 1)) if ranks is None else ranks
    if config.cluster.insecure or world == 1:
        return
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    for address in _addresses(interface):
        if ipaddress.ip_address(address).is_global:
            where = f"interface {interface}" if interface else "this machine's name"
            raise ConfigError(
                f"cluster.insecure: ranks would talk to each other through {address} ({where}), "
                "which the whole world may reach; expected GLOO_SOCKET_IFNAME to name the "
                "interface of a private network, or true"
            )


def _addresses(interface: str) -> list[str]:
    """Return the addresses of an interface. For "", those of this machine's name, which gloo
    uses."""
    if interface:
        texts = [entry.address for entry in psutil.net_if_addrs().get(interface, [])]
    else:
        try:
            texts = [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)]
        except OSError:
            texts = []
    addresses = [text.partition("%")[0] for text in texts]
    return [address for address in addresses if _is_address(address)]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
