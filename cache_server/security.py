"""Who may talk to a feature server: certificates, tokens, and addresses that need neither."""

from __future__ import annotations

import hmac
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from cache_server.errors import SecurityError
from cache_server.events import events

HEADER: Final = "authorization"
_SCHEME: Final = "Bearer "
_SHORTEST_TOKEN: Final = 16
_LONGEST_TOKEN: Final = 4096


@dataclass(frozen=True)
class Security:
    """What protects connections, at either end. Files are read again when they have changed.

    Attributes
    ----------
    tls_ca: PEM file of those who vouch for the other end. A client needs it for TLS; a server that
        has it takes only clients that show a certificate of theirs (mutual TLS).
    tls_certificate, tls_key: PEM files of this end. A server needs them for TLS.
    token_file: what every request has to carry is its content, without blanks around it.
    insecure: whether addresses beyond this machine's loopback may do without TLS.
    """

    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    token_file: str = ""
    insecure: bool = False

    def check_server(self, listen: str) -> None:
        """Refuse files that do not fit each other, and to listen in the open.

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
        """Refuse files that do not fit each other, and to talk in the open; raises as
        :meth:`check_server`."""
        self._check_pair()
        if self.tls_certificate and not self.tls_ca:
            raise SecurityError(
                "tls_certificate: clients show theirs to servers that they know by tls_ca; "
                "expected tls_ca as well"
            )
        if self.tls_ca or self.insecure:
            return
        for address in (each for several in addresses for each in several.split(",")):
            if not is_loopback(address):
                raise SecurityError(_in_the_open("talking to", address, "tls_ca"))

    def _check_pair(self) -> None:
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise SecurityError(
                "tls_key, tls_certificate: expected both or neither, given "
                f"{self.tls_key or self.tls_certificate!r} alone"
            )
        self._read_tls()
        if self.token_file:
            _read_token(self.token_file)

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """Those of a server, which takes changed files for connections from then on; None = plain.

        Changed files that cannot be used are told on stderr, and those before them stay.
        """
        if not self.tls_certificate:
            return None
        files = WatchedFiles(self.tls_files)

        def configuration() -> grpc.ServerCertificateConfiguration:
            ca, chain, key = self._read_tls()
            return grpc.ssl_server_certificate_configuration([(key, chain)], ca)

        def renew() -> grpc.ServerCertificateConfiguration | None:
            if not files.have_changed():
                return None
            try:
                return configuration()
            except SecurityError as error:
                events.warn("certificates", f"{error}; certificates stay as they were")
                return None

        return grpc.dynamic_ssl_server_credentials(configuration(), renew, bool(self.tls_ca))

    def server_context(self) -> ssl.SSLContext | None:
        """That of a server of another protocol as its files are now; None = plain.

        Raises
        ------
        SecurityError: as of :meth:`check_server`.
        """
        if not self.tls_certificate:
            return None
        context = self._load_tls()
        if self.tls_ca:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def channel_credentials(self) -> grpc.ChannelCredentials | None:
        """Those of a client as its files are now; None = plain."""
        if not self.tls_ca:
            return None
        ca, chain, key = self._read_tls()
        return grpc.ssl_channel_credentials(ca, key, chain)

    @property
    def tls_files(self) -> list[str]:
        """Paths of what TLS rests on."""
        return [each for each in (self.tls_ca, self.tls_certificate, self.tls_key) if each]

    def _read_tls(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """Contents of tls_ca, tls_certificate and tls_key; raises as :meth:`_load_tls`."""
        self._load_tls()
        ca, chain, key = (
            Path(each).read_bytes() if each else None
            for each in (self.tls_ca, self.tls_certificate, self.tls_key)
        )
        return ca, chain, key

    def _load_tls(self) -> ssl.SSLContext:
        """A server's context of the files that there are.

        Raises
        ------
        SecurityError: one cannot be read or is nothing of the kind, or key and certificate are no
            pair.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.tls_ca:
            try:
                context.load_verify_locations(self.tls_ca)
            except (OSError, ssl.SSLError) as error:
                raise _unreadable("tls_ca", self.tls_ca, "PEM certificates", error) from error
        if self.tls_certificate:
            try:
                # A key with a pass phrase would ask for it on the terminal.
                context.load_cert_chain(
                    self.tls_certificate,
                    self.tls_key,
                    password="",  # nosec B106 # none: a key that has one is refused
                )
            except (OSError, ssl.SSLError, ValueError) as error:
                names = f"{self.tls_certificate}, {self.tls_key}"
                what = "a PEM certificate and its key without a pass phrase"
                raise _unreadable("tls_certificate, tls_key", names, what, error) from error
        return context


PLAIN: Final = Security()
"""loopback alone, open to all of this machine"""


@dataclass
class Token:
    """The content of a token file, read again once that has changed.

    A file that is gone or empty meanwhile leaves the token as it was: it may be in the making.
    """

    path: str
    _value: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._files = WatchedFiles([self.path])
        self._value = _read_token(self.path)

    @property
    def value(self) -> str:
        """As it is now."""
        if self._files.have_changed():
            try:
                self._value = _read_token(self.path)
            except SecurityError as error:
                events.warn("token", f"{error}; the token stays as it was")
        return self._value

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a request carries."""
        return ((HEADER, f"{_SCHEME}{self.value}"),)

    def is_shown_by(self, metadata: Sequence[Any]) -> bool:
        """Whether a request carries it; takes as long for a wrong one as for the right one."""
        shown = [value for key, value in metadata if key == HEADER]
        expected = f"{_SCHEME}{self.value}".encode()
        return len(shown) == 1 and hmac.compare_digest(_as_bytes(shown[0]), expected)


class TokenGuard(grpc.ServerInterceptor):
    """Refuses requests that do not carry the token, before anything of them is read.

    Parameters
    ----------
    on_refusal: called with the path of the method of each.
    """

    def __init__(self, token: Token, on_refusal: Callable[[str], None]) -> None:
        self._token = token
        self._on_refusal = on_refusal

        def refuse(_requests: Any, context: grpc.ServicerContext) -> Any:
            events.note("refused token", "a request without the token", peer=context.peer())
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "expected this cluster's token")

        # Of a stream nothing is read until somebody asks for it.
        self._refusal = grpc.stream_stream_rpc_method_handler(refuse)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """See :class:`grpc.ServerInterceptor`."""
        if self._token.is_shown_by(handler_call_details.invocation_metadata or ()):
            return continuation(handler_call_details)
        self._on_refusal(handler_call_details.method)
        return self._refusal


class WatchedFiles:
    """Says whether files have changed since it was last asked, or made."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths, self._lock = tuple(paths), threading.Lock()
        self._seen = self._look()

    def have_changed(self) -> bool:
        """Whether they have; one that is gone has."""
        now = self._look()
        with self._lock:
            has_changed, self._seen = now != self._seen, now
        return has_changed

    def _look(self) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for path in self._paths:
            try:
                told = Path(path).stat()
            except OSError:
                found.append(())
            else:
                found.append((told.st_mtime_ns, told.st_size, told.st_ino))
        return found


def is_loopback(address: str) -> bool:
    """Whether ``host:port`` leads nowhere but to this machine; unknown names may lead anywhere."""
    try:
        found = socket.getaddrinfo(address.rpartition(":")[0].strip("[]") or None, None)
    except (OSError, UnicodeError):
        return False
    hosts = [str(each[4][0]).partition("%")[0] for each in found]
    return all(ipaddress.ip_address(host).is_loopback for host in hosts)


def _read_token(path: str) -> str:
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise _unreadable("token_file", path, "a line of ASCII", error) from None
    # What it is must not be told.
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
