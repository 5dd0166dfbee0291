"""What protects a run's connections, as ``[cluster]`` has it."""

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
"""keys of ``[cluster]``, and words of ``python -m cache_server``"""


def security_of(config: Config) -> Security:
    """That of both ends of a run's connections to feature servers."""
    own = config.cluster
    return Security(**{key: getattr(own, key) for key in FILES}, insecure=own.insecure)


def security_words(config: Config) -> Iterator[str]:
    """What tells a feature server of it on the command line."""
    for key in FILES:
        value = getattr(config.cluster, key)
        if value:
            yield f"--{key.replace('_', '-')}={value}"
    if config.cluster.insecure:
        yield "--insecure"


def absolute_files(config: Config) -> dict[str, str]:
    """Keys of ``[cluster]`` that name files, with absolute paths, as ranks read them."""
    found = {key: getattr(config.cluster, key) for key in FILES}
    return {key: value and os.path.abspath(value) for key, value in found.items()}


def check_security(config: Config) -> None:
    """Refuse files that cannot be used, and feature servers that would be asked in the open.

    Raises
    ------
    ConfigError: names the key, what was expected and what came.
    """
    own = security_of(config)
    try:
        if not config.cluster.servers:
            own.check_server("127.0.0.1:0")
        own.check_client(config.cluster.servers)
    except SecurityError as error:
        raise ConfigError(f"cluster.{error}") from error


def check_network_of_ranks(config: Config, ranks: int | None = None) -> None:
    """Refuse that this rank talks to others from an address that the whole world can reach: what
    travels between ranks is neither encrypted nor told from what others send.

    Parameters
    ----------
    ranks: how many there are; None = as torchrun says.

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
    """Of an interface; of none, those of this machine's name, as gloo takes them."""
    if interface:
        own = [each.address for each in psutil.net_if_addrs().get(interface, [])]
    else:
        try:
            own = [str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), None)]
        except OSError:
            own = []
    return [each.partition("%")[0] for each in own if _is_address(each.partition("%")[0])]


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
