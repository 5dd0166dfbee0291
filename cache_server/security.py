"""Certificates and tokens of connections, and the check that no address goes without them."""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import ssl
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
    """The protection of connections, at either end. Files are read again when they have changed.

    Attributes
    ----------
    tls_ca: PEM file of the authorities that sign the other end's certificate. A client needs it for
        TLS. A server that has it accepts only clients with such a certificate (mutual TLS).
    tls_certificate, tls_key: PEM files of this end. A server needs them for TLS.
    token_file: file with the token that every request must carry; blanks around it are ignored.
    insecure: whether addresses beyond this machine's loopback may be used without TLS.
    """

    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    token_file: str = ""
    insecure: bool = False

    def check_server(self, listen: str) -> None:
        """Check that a server's files fit each other, and that ``listen`` is protected.

        Raises
        ------
        SecurityError: names the setting, what was expected and what came.
        """
        self._check_pair()
        if self.tls_ca and not self.tls_certificate:
            raise SecurityError(
                "tls_ca: on a server it is for clients' certificates; expected tls_certificate and "
                "tls_key as well"
            )
        if not (self.tls_certificate or self.insecure or is_loopback(listen)):
            raise SecurityError(_in_the_open("listening on", listen, "tls_certificate and tls_key"))

    def check_client(self, addresses: Sequence[str]) -> None:
        """Check that a client's files fit each other, and that all addresses are protected.

        Raises
        ------
        SecurityError: as :meth:`check_server`.
        """
        self._check_pair()
        if self.tls_certificate and not self.tls_ca:
            raise SecurityError(
                "tls_certificate: clients show theirs to servers that they know by tls_ca; "
                "expected tls_ca as well"
            )
        if self.tls_ca or self.insecure:
            return
        for group in addresses:
            for address in group.split(","):
                if not is_loopback(address):
                    raise SecurityError(_in_the_open("talking to", address, "tls_ca"))

    def _check_pair(self) -> None:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise SecurityError(
                "tls_key, tls_certificate: expected both or neither, given "
                f"{self.tls_key or self.tls_certificate!r} alone"
            )
        self.check_certificates()
        if self.token_file:
            _read_token(self.token_file)

    def check_certificates(self) -> None:
        """Refuse certificates that the other end would refuse.

        An end's own certificate must come from an authority in tls_ca.

        Raises
        ------
        SecurityError: one cannot be used, is expired, not valid yet, or of another authority; names
            file and reason.
        """
        self._load_tls()
        fault = find_fault(self.tls_ca, self.tls_certificate, self.tls_key)
        if fault is not None:
            file, reason = fault
            key = "tls_ca" if file == self.tls_ca else "tls_certificate"
            raise SecurityError(
                f"{key}: {file}: {reason}; have it issued anew (docs/howto/secure.md)"
            )

    def warn_of_open_secrets(self) -> None:
        """Write a warning for each file with a secret that not its owner alone can read."""
        for key in ("tls_key", "token_file"):
            file = getattr(self, key)
            readers = readers_of(file) if file else ""
            if readers:
                events.warn("open secret", f"{key}: {file}: {readers}; chmod 600 {file}")

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Make a grpc server's credentials; None = no TLS.

        New connections use changed files. If these cannot be used, a warning is written to stderr
        and the old certificates stay in use.
        """
        if not self.tls_certificate:
            return None
        files = WatchedFiles(self.tls_files)

        def configuration() -> grpc.ServerCertificateConfiguration:
            self.check_certificates()
            ca, chain, key = self._read_tls()
            return grpc.ssl_server_certificate_configuration([(key, chain)], ca)

        def renew() -> grpc.ServerCertificateConfiguration | None:
            """Read certificates again if a file has changed. Unreadable ones change nothing."""
            if not files.have_changed():
                return None
            try:
                return configuration()
            except SecurityError as error:
                events.warn("certificates", f"{error}; certificates stay as they were")
                return None

        return grpc.dynamic_ssl_server_credentials(configuration(), renew, bool(self.tls_ca))

    def server_context(self) -> ssl.SSLContext | None:
        """Make a server's context for other protocols from the present files; None = no TLS.

        Raises
        ------
        SecurityError: as :meth:`check_server`.
        """
        if not self.tls_certificate:
            return None
        context = self._load_tls()
        if self.tls_ca:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Make a client's credentials from the present files; None = no TLS."""
        if not self.tls_ca:
            return None
        ca, chain, key = self._read_tls()
        return grpc.ssl_channel_credentials(ca, key, chain)

    @property
    def tls_files(self) -> list[str]:
        """The paths of the files that TLS needs."""
        return [path for path in (self.tls_ca, self.tls_certificate, self.tls_key) if path]

    def _read_tls(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Read the contents of tls_ca, tls_certificate and tls_key; raise as :meth:`_load_tls`."""
        self._load_tls()
        ca, chain, key = (
            Path(path).read_bytes() if path else None
            for path in (self.tls_ca, self.tls_certificate, self.tls_key)
        )
        return ca, chain, key

    def _load_tls(self) -> ssl.SSLContext:
        """Load the files that are set into a server's context.

        Raises
        ------
        SecurityError: a file cannot be read or is no PEM file, or key and certificate do not match.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.tls_ca:
            try:
                context.load_verify_locations(self.tls_ca)
            except (OSError, ssl.SSLError) as error:
                raise _unreadable("tls_ca", self.tls_ca, "PEM certificates", error) from error
        if self.tls_certificate:
            try:
                # Without a password OpenSSL would ask for a pass phrase on the terminal.
                context.load_cert_chain(
                    self.tls_certificate,
                    self.tls_key,
                    password="",  # none: a key that has one is refused
                )
            except (OSError, ssl.SSLError, ValueError) as error:
                names = f"{self.tls_certificate}, {self.tls_key}"
                what = "a PEM certificate and its key without a pass phrase"
                raise _unreadable("tls_certificate, tls_key", names, what, error) from error
        return context


PLAIN: Final = Security()
"""no TLS and no token: for addresses on this machine's loopback only"""


@dataclass
class Token:
    """The content of a token file, which is read again when it has changed.

    A missing or empty file leaves the token unchanged, since it may be about to be written.
    """

    path: str
    _value: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._files = WatchedFiles([self.path])
        self._value = _read_token(self.path)

    @property
    def value(self) -> str:
        """The present token."""
        if self._files.have_changed():
            try:
                self._value = _read_token(self.path)
            except SecurityError as error:
                events.warn("token", f"{error}; the token stays as it was")
        return self._value

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata by which a request carries the token."""
        return ((HEADER, f"{_SCHEME}{self.value}"),)

    def is_shown_by(self, metadata: Sequence[Any]) -> bool:
        """Return whether a request carries the token, in a time that does not depend on it."""
        values = [value for key, value in metadata if key == HEADER]
        expected = f"{_SCHEME}{self.value}".encode()
        return len(values) == 1 and hmac.compare_digest(_as_bytes(values[0]), expected)


class TokenGuard(grpc.ServerInterceptor):
    """Refuses requests without the token before their messages are read.

    Parameters
    ----------
    on_refusal: called with the method's full name for every refused request.
    """

    def __init__(self, token: Token, on_refusal: Callable[[str], None]) -> None:
        self._token = token
        self._on_refusal = on_refusal

        def refuse(_requests: Any, context: grpc.ServicerContext) -> Any:
            events.note("refused token", "a request without the token", peer=context.peer())
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "expected this cluster's token")

        # As a stream method the handler gets the call before any message is read.
        self._refusal = grpc.stream_stream_rpc_method_handler(refuse)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Return the handler of a call: the usual one, or one that refuses it."""
        if self._token.is_shown_by(handler_call_details.invocation_metadata or ()):
            return continuation(handler_call_details)
        self._on_refusal(handler_call_details.method)
        return self._refusal


class WatchedFiles:
    """Detects changes of files by their time, size and inode. Safe to use from several threads."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths, self._lock = tuple(paths), threading.Lock()
        self._states = self._read_states()

    def have_changed(self) -> bool:
        """Return whether a file has changed or gone since the last call or since this was made."""
        states = self._read_states()
        with self._lock:
            has_changed, self._states = states != self._states, states
        return has_changed

    def _read_states(self) -> list[tuple[int, ...]]:
        states: list[tuple[int, ...]] = []
        for path in self._paths:
            try:
                status = Path(path).stat()
            except OSError:
                states.append(())
            else:
                states.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return states


def readers_of(file: str) -> str:
    """Return who can read a file that nobody else should, as a text; "" = nobody.

    The group may read a file of another user, such as root's, if this process does so as its
    member.
    """
    status = Path(file).stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_IROTH:
        return f"every user of this machine can read it (mode {mode:o})"
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


def _read_token(path: str) -> str:
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
    return token


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode(errors="replace")


def _unreadable(key: str, path: str, expected: str, error: Exception) -> SecurityError:
    reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
    return SecurityError(f"{key}: {path}: expected {expected}: {reason}")


def _in_the_open(act: str, address: str, expected: str) -> str:
    return (
        f"insecure: {act} {address}, which is no loopback address, anybody in between could read "
        f"along; expected {expected}, or insecure for a network that only you and those you trust "
        "can reach"
    )
