"""Binding the address that a server is to listen on: all of it, or nothing."""

from __future__ import annotations

import errno
import socket
from typing import Any, Final

from cache_server.errors import ListenError
from cache_server.security import PLAIN, Security

# A machine without IPv6 has names with addresses of it all the same.
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_LAST_PORT: Final = 65535


def bind(server: Any, listen: str, security: Security = PLAIN) -> str:
    """Bind a grpc server to ``listen``, "host:port"; returns it with the port that was taken.

    grpc is content with any of the addresses that a name stands for: on ``localhost`` it would take
    ::1 where another process has the port on 127.0.0.1, and its clients would reach the other one.

    Parameters
    ----------
    security: with certificates the port is TLS's.

    Raises
    ------
    SecurityError: its files cannot be used, or the address is open to others without them.
    ListenError: the address is malformed, unknown or taken; names it.
    """
    host, port = parse_address(listen)
    check_free(host, port, listen)
    security.check_server(listen)
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
    """Host and port of "host:port"; brackets around an IPv6 address are left out.

    Parameters
    ----------
    name: of the setting, for errors.

    Raises
    ------
    ListenError: it is malformed.
    """
    host, separator, port = listen.rpartition(":")
    if not separator or not host or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ListenError(f"{name}: expected HOST:PORT, found {listen!r}")
    return host.strip("[]"), int(port)


def check_free(host: str, port: int, listen: str, name: str = "listen") -> None:
    """Refuse an address of which anything is taken.

    Parameters
    ----------
    listen: of which host and port are. name: of the setting; both for errors.

    Raises
    ------
    ListenError: names the address, and what cannot be had.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(
            f"{name}: cannot bind {listen}: {host!r} is no address: {error}"
        ) from error
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # As grpc does it: a port that a server has just left may be taken again.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno not in _ABSENT or len(found) == 1:
                raise ListenError(
                    f"{name}: cannot bind {listen}: {address[0]} port {port}: {error.strerror}"
                ) from error
