"""Certificates and tokens of connections, and the check that no address goes without them.

A server reads its certificates anew when their files change. All else is read once, when a server
or a client is made.
"""

from __future__ import annotations

import errno
import hmac
import ipaddress
import os
import socket
import ssl
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from cache_server.errors import ListenError, SecurityError
from cache_server.events import events

HEADER: Final = "authorization"
_SCHEME: Final = "Bearer "
_SHORTEST_TOKEN: Final = 16
_LONGEST_TOKEN: Final = 4096
_LAST_PORT: Final = 65535
_ABSENT: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""errors of IPv6 addresses, which names have even on a machine without IPv6"""
_TURNS: Final = 8
"""turns of each end of a handshake, which needs at most three"""
_INVALID_PURPOSE: Final = 26
"""OpenSSL's X509_V_ERR_INVALID_PURPOSE"""


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

    def check_server(self, listen: str, name: str = "listen") -> tuple[str, int]:
        """Check that the address of a setting is free and protected, and that a server's files fit
        each other; return its host and port."""
        address = _find_free(listen, name)
        self._check_files()
        if self.tls_ca and not self.tls_certificate:
            raise SecurityError(
                "tls_ca: on a server it is for clients' certificates; expected tls_certificate and "
                "tls_key as well"
            )
        if not (self.tls_certificate or self.insecure or is_loopback(listen)):
            raise _in_the_open("listening on", listen, "tls_certificate and tls_key")
        return address

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
        authorities = context.get_ca_certs()
        # An expired certificate does no harm beside a valid one.
        if authorities and not any(map(_is_valid_now, authorities)):
            raise _outdated("tls_ca", self.tls_ca, "expired, or not valid yet")
        try:
            if self.tls_certificate:
                # Without authorities to vouch for it, it is its own, and only its time matters.
                client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                client.load_verify_locations(self.tls_ca or self.tls_certificate)
                if not self.tls_ca:
                    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
                shake_hands(client, self.tls_certificate, self.tls_key)
        except ssl.SSLCertVerificationError as error:
            # One that may only be a client's cannot be judged in a server's place.
            if error.verify_code != _INVALID_PURPOSE:
                vouched = f"not vouched for by {self.tls_ca}: " if self.tls_ca else ""
                text = vouched + error.verify_message
                raise _outdated("tls_certificate", self.tls_certificate, text) from error
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
        held = self._read_tls()

        def configure() -> Any:
            ca, chain, key = held
            return grpc.ssl_server_certificate_configuration([(key, chain)], ca)

        def renew() -> Any:
            """Return what changed files hold, or None to go on; grpc asks at every handshake."""
            nonlocal held
            try:
                before, held = held, self._read_tls()
                if held == before:
                    return None
                self._check_files()
                return configure()
            except (OSError, SecurityError) as error:
                events.warn("certificates", f"the earlier certificates stay in use: {error}")
                return None

        return grpc.dynamic_ssl_server_credentials(configure(), renew, bool(self.tls_ca))

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


def shake_hands(
    client: ssl.SSLContext, certificate: str, key: str, name: str | None = None
) -> dict[str, Any]:
    """Connect two ends in memory, since ssl describes and verifies a certificate only after a
    handshake; return the server's certificate as the client sees it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key, password="")  # none
    client.check_hostname = name is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(_TURNS):
        for end in tuple(waiting):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
                waiting.remove(end)
    if waiting:
        raise ssl.SSLError("the two ends of a handshake within this process did not meet")
    return dict(ends[0].getpeercert() or {})


def _is_valid_now(certificate: dict[str, Any]) -> bool:
    begin, end = (ssl.cert_time_to_seconds(certificate[key]) for key in ("notBefore", "notAfter"))
    return begin <= time.time() <= end


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


def parse_address(address: str, name: str = "listen") -> tuple[str, int]:
    """Split the "host:port" of a setting; brackets around an IPv6 address are removed."""
    host, _, digits = address.rpartition(":")
    if not host or not digits.isdecimal() or int(digits) > _LAST_PORT:
        raise ListenError(f"{name}: expected HOST:PORT, found {address!r}")
    return host.strip("[]"), int(digits)


def _find_free(listen: str, name: str) -> tuple[str, int]:
    """Split "host:port", and check that the port is free on all addresses of the host, of which
    grpc would bind any one: on ``localhost`` that could be ::1, while clients reach another process
    on 127.0.0.1."""
    (host, port), where = parse_address(listen, name), f"{name}: cannot bind {listen}"
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"{where}: {host!r} is no address: {error}") from error
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
                text = f"{where}: {address[0]} port {port}: {error.strerror}"
                raise ListenError(text) from error
    return host, port


def _unreadable(key: str, path: str, expected: str, error: Exception) -> SecurityError:
    reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
    return SecurityError(f"{key}: {path}: expected {expected}: {reason}")


def _in_the_open(act: str, address: str, expected: str) -> SecurityError:
    return SecurityError(
        f"insecure: {act} {address}, which is no loopback address, anybody in between could read "
        f"along; expected {expected}, or insecure for a network that only you and those you trust "
        "can reach"
    )


def _outdated(key: str, file: str, fault: str) -> SecurityError:
    return SecurityError(f"{key}: {file}: {fault}; have it issued anew (docs/howto/secure.md)")
