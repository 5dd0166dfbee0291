"""Binding a server to every address that its name stands for."""

from __future__ import annotations

import errno
import socket
from typing import Any, Final

from cache_server.errors import ListenError
from cache_server.security import PLAIN, Security

# Names have IPv6 addresses even on a machine without IPv6.
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_LAST_PORT: Final = 65535


def bind(server: Any, listen: str, security: Security = PLAIN) -> str:
    """Bind a grpc server to ``listen``, "host:port", and return the address with its real port."""
    check_free(*parse_address(listen), listen)
    security.check_server(listen)
    security.warn_of_open_secrets()
    credentials = security.server_credentials()
    try:
        if credentials is None:
            bound = server.add_insecure_port(listen)
        else:
            bound = server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise ListenError(f"listen: cannot bind {listen}: {error}") from error
    return f"{listen.rpartition(':')[0]}:{bound}"


def parse_address(listen: str, name: str = "listen") -> tuple[str, int]:
    """Split the "host:port" of a setting; brackets around an IPv6 address are removed."""
    host, separator, port = listen.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ListenError(f"{name}: expected HOST:PORT, found {listen!r}")
    return host.strip("[]"), int(port)


def check_free(host: str, port: int, listen: str, name: str = "listen") -> None:
    """Check that the port is free on all addresses of a host, of which grpc would bind any one.

    On ``localhost`` that could be ::1, while clients reach another process on 127.0.0.1.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(
            f"{name}: cannot bind {listen}: {host!r} is no address: {error}"
        ) from error
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # grpc sets this too: a port that a server has just released can be bound again.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno not in _ABSENT or len(addresses) == 1:
                raise ListenError(
                    f"{name}: cannot bind {listen}: {address[0]} port {port}: {error.strerror}"
                ) from error
