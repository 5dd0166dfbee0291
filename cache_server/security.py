"""Certificates and tokens of connections, and the check that no address goes without them.

A server reads its certificates anew when their files change. All else is read once, when a server
or a client is made.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import ssl
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from cache_server.certificates import find_fault
from cache_server.errors import SecurityError
from cache_server.events import events

HEADER: Final = "authorization"
_SCHEME: Final = "Bearer "
_SHORTEST_TOKEN: Final = 16
_LONGEST_TOKEN: Final = 4096


@dataclass(frozen=True)
class Security:
    """The protection of connections, at either end; see docs/howto/secure.md.

    ``tls_ca`` are the authorities that sign the other end's certificate. A client needs them for
    TLS. A server that has them accepts only clients with such a certificate (mutual TLS).
    ``tls_certificate`` and ``tls_key`` are this end's; a server needs them for TLS.
    """

    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    token_file: str = ""
    insecure: bool = False

    def check_server(self, listen: str) -> None:
        """Check that a server's files fit each other, and that ``listen`` is protected."""
        self._check_files()
        if self.tls_ca and not self.tls_certificate:
            raise SecurityError(
                "tls_ca: on a server it is for clients' certificates; expected tls_certificate and "
                "tls_key as well"
            )
        if not (self.tls_certificate or self.insecure or is_loopback(listen)):
            raise _in_the_open("listening on", listen, "tls_certificate and tls_key")

    def check_client(self, addresses: Sequence[str]) -> None:
        """Check that a client's files fit each other, and that all addresses are protected."""
        self._check_files()
        if self.tls_certificate and not self.tls_ca:
            raise SecurityError(
                "tls_certificate: clients show theirs to servers that they know by tls_ca; "
                "expected tls_ca as well"
            )
        if self.tls_ca or self.insecure:
            return
        for address in (one for group in addresses for one in group.split(",")):
            if not is_loopback(address):
                raise _in_the_open("talking to", address, "tls_ca")

    def _check_files(self) -> None:
        """Refuse files that cannot be used, and certificates that the other end would refuse."""
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise SecurityError(
                "tls_key, tls_certificate: expected both or neither, given "
                f"{self.tls_key or self.tls_certificate!r} alone"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        key, files, expected = "tls_ca", self.tls_ca, "PEM certificates"
        try:
            if self.tls_ca:
                context.load_verify_locations(self.tls_ca)
            if self.tls_certificate:
                key, files = "tls_certificate, tls_key", f"{self.tls_certificate}, {self.tls_key}"
                expected = "a PEM certificate and its key without a pass phrase"
                # Without a password OpenSSL would ask for a pass phrase on the terminal.
                context.load_cert_chain(
                    self.tls_certificate,
                    self.tls_key,
                    password="",  # none: a key that has one is refused
                )
        except (OSError, ValueError) as error:
            raise _unreadable(key, files, expected, error) from error
        fault = find_fault(self.tls_ca, self.tls_certificate, self.tls_key)
        if fault is not None:
            file, reason = fault
            key = "tls_ca" if file == self.tls_ca else "tls_certificate"
            raise SecurityError(
                f"{key}: {file}: {reason}; have it issued anew (docs/howto/secure.md)"
            )
        if self.token_file:
            Token(self.token_file)

    def warn_of_open_secrets(self) -> None:
        """Write a warning for each file with a secret that not its owner alone can read."""
        for key in ("tls_key", "token_file"):
            file = getattr(self, key)
            readers = readers_of(file) if file else ""
            if readers:
                events.warn("open secret", f"{key}: {file}: {readers}; chmod 600 {file}")

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Make a server's credentials of checked files, which follow the files; None = no TLS."""
        if not self.tls_certificate:
            return None

        def read() -> Any:
            ca, chain, key = self._read_tls()
            return grpc.ssl_server_certificate_configuration([(key, chain)], ca)

        changes = self._changes()

        def renew() -> Any:
            """Return what changed files hold, or None to go on; grpc asks at every handshake."""
            nonlocal changes
            try:
                before, changes = changes, self._changes()
                if changes == before:
                    return None
                self._check_files()
                return read()
            except (OSError, SecurityError) as error:
                events.warn("certificates", f"the earlier certificates stay in use: {error}")
                return None

        return grpc.dynamic_ssl_server_credentials(read(), renew, bool(self.tls_ca))

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Make a client's credentials of checked files; None = no TLS."""
        if not self.tls_ca:
            return None
        ca, chain, key = self._read_tls()
        return grpc.ssl_channel_credentials(ca, key, chain)

    def token(self) -> Token | None:
        """Read the token; None = requests need none."""
        return Token(self.token_file) if self.token_file else None

    def _read_tls(self) -> list[bytes | None]:
        files = (self.tls_ca, self.tls_certificate, self.tls_key)
        return [Path(file).read_bytes() if file else None for file in files]

    def _changes(self) -> list[tuple[int, int]]:
        """Return what differs once one of the files has been written or replaced."""
        files = filter(None, (self.tls_ca, self.tls_certificate, self.tls_key))
        return [(status.st_mtime_ns, status.st_ino) for status in map(os.stat, files)]


PLAIN: Final = Security()
"""no TLS and no token: for addresses on this machine's loopback only"""


class Token:
    """The content of a token file; raises SecurityError if it is none."""

    def __init__(self, path: str) -> None:
        try:
            token = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeError) as error:
            raise _unreadable("token_file", path, "a line of ASCII", error) from None
        # The error must not contain the token.
        if not _SHORTEST_TOKEN <= len(token) <= _LONGEST_TOKEN or not token.isprintable():
            raise SecurityError(
                f"token_file: {path}: expected a line of {_SHORTEST_TOKEN} to {_LONGEST_TOKEN:,} "
                f"printable characters, found {len(token)} of any kind"
            )
        self._header = f"{_SCHEME}{token}"

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata by which a request carries the token."""
        return ((HEADER, self._header),)

    def is_shown_by(self, metadata: Sequence[Any]) -> bool:
        """Return whether a request carries the token, in a time that does not depend on it."""
        shown = [value for key, value in metadata if key == HEADER]
        if len(shown) != 1:
            return False
        value = shown[0] if isinstance(shown[0], bytes) else shown[0].encode(errors="replace")
        return hmac.compare_digest(value, self._header.encode())


def readers_of(file: str) -> str:
    """Return who can read a file that nobody else should, as a text; "" = nobody."""
    status = Path(file).stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_IROTH:
        return f"every user of this machine can read it (mode {mode:o})"
    # This process may read a file of another user, such as root's, as a member of the group.
    if mode & stat.S_IRGRP and status.st_uid == os.geteuid():
        return f"its group can read it (mode {mode:o})"
    return ""


def is_loopback(address: str) -> bool:
    """Return whether ``host:port`` is an address of this machine's loopback only.

    A name that cannot be resolved is not, since it may later lead anywhere.
    """
    try:
        addresses = socket.getaddrinfo(address.rpartition(":")[0].strip("[]") or None, None)
    except (OSError, UnicodeError):
        return False
    hosts = [str(address[0]).partition("%")[0] for *_, address in addresses]
    return all(ipaddress.ip_address(host).is_loopback for host in hosts)


def _unreadable(key: str, path: str, expected: str, error: Exception) -> SecurityError:
    reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
    return SecurityError(f"{key}: {path}: expected {expected}: {reason}")


def _in_the_open(act: str, address: str, expected: str) -> SecurityError:
    return SecurityError(
        f"insecure: {act} {address}, which is no loopback address, anybody in between could read "
        f"along; expected {expected}, or insecure for a network that only you and those you trust "
        "can reach"
    )
