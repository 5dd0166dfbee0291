"""Probing one feature server: its name, port, certificate, description and rate."""

from __future__ import annotations

import platform
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from statistics import median
from typing import Any, Final

import numpy as np

from cache_server.client import FeatureClient, find_misfit
from cache_server.client.operation import Deadline
from cache_server.errors import CallError, SecurityError
from cache_server.limits import IDS_PER_REQUEST
from cache_server.security import Security
from cache_server.store.manifest import TableSpec
from cache_server.store.table import FEATURES
from cache_server.wire import DTYPES, little_endian
from hopper.doctor.certificates import SOON_DAYS, validity_of
from hopper.doctor.finding import Finding, warning, wrong
from hopper.doctor.versions import numbers
from hopper.process.time_limit import finish_within

_ROUND_TRIPS: Final = 5
_FETCH_BYTES: Final = 8 << 20
_FETCH_IDS: Final = 1 << 18
_ADVICE: Final = "see that it is started (hopper serve), and that nothing between drops packets"


@dataclass(frozen=True)
class Expected:
    """A server that ``cluster.servers`` names.

    Attributes
    ----------
    server: its number.
    servers: how many servers there are.
    division: the fingerprint of the division that it must serve; "" = any.
    address: "host:port".
    security: security of the connection.
    """

    server: int
    servers: int
    division: str
    address: str
    security: Security

    @property
    def subject(self) -> str:
        """The subject of findings about it."""
        return f"server {self.server}, {self.address}"


@dataclass(frozen=True)
class Answer:
    """The result of probing a server.

    Attributes
    ----------
    findings: warnings, and why ranks could not use it.
    text: the facts that are fine, as a text.
    description: the server's ``ServerDescription``; None = ranks could not use it.
    """

    findings: tuple[Finding, ...]
    text: str = ""
    description: Any = None


class _Refused(Exception):
    """Ranks could not use the server. The text says why."""

    def __init__(self, text: str, advice: str = _ADVICE) -> None:
        super().__init__(text)
        self.advice = advice


def ask_server(expected: Expected, limit: float) -> Answer:
    """Probe a server within ``limit`` seconds. Only the look-up of a name may take longer."""
    deadline, findings = Deadline(limit), list[Finding]()
    try:
        host, port = _split(expected.address)
        with _connect(host, port, deadline) as connection:
            texts = list(_check_certificate(connection, host, expected, findings))
        description, seconds = _describe(expected, deadline)
    except _Refused as error:
        return Answer((*findings, wrong(expected.subject, error, error.advice)))
    findings += _compare_versions(expected.subject, description)
    texts = [
        f"serves part {expected.server} of {expected.servers}, {len(description.tables)} tables",
        f"at most {description.ids_per_request:,} ids a request",
        *texts,
        f"round trip {1e3 * seconds:.2f} ms",
    ]
    return Answer(tuple(findings), "; ".join(texts), description)


def measure_rate(expected: Expected, description: Any, seconds: float) -> str:
    """Fetch some MiB of the server's rows twice, and describe the rate of the second time.

    Raises
    ------
    CallError: the server does not send them within ``seconds``.
    """
    table = _widest(description)
    if table is None:
        return "it has no rows to fetch"
    row_bytes = table.dim * little_endian(table.dtype).itemsize
    # A small table sends its rows repeatedly: the network is measured, not the disk.
    count = max(1, min(_FETCH_BYTES // row_bytes, _FETCH_IDS))
    ids = table.first_id + np.arange(count, dtype=np.int64) % table.count
    out = np.empty((count, table.dim), np.dtype(table.dtype))
    ids_per_request = min(IDS_PER_REQUEST, description.ids_per_request)
    deadline = Deadline(seconds)
    with FeatureClient(
        [expected.address],
        deadline=seconds,
        ids_per_request=ids_per_request,
        security=expected.security,
    ) as client:
        for _ in range(2):
            begun = time.perf_counter()
            remaining = deadline.remaining()
            client.fetch_rows(table.kind, table.type, {0: ids}, out, {0: slice(None)}, remaining)
            took = time.perf_counter() - begun
    rate = out.nbytes / took
    return (
        f"{out.nbytes / 2**20:.1f} MiB of {table.kind}/{table.type} at {rate / 2**20:,.0f} MiB/s "
        f"({8 * rate / 1e9:.2f} Gbit/s)"
    )


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise _Refused("expected host:port", "write it so in cluster.servers")
    return host.strip("[]"), int(port)


def _connect(host: str, port: int, deadline: Deadline) -> socket.socket:
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        places = finish_within(deadline.remaining(), look_up)
    except (TimeoutError, socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        advice = "correct it in cluster.servers, or let /etc/hosts or a name server know it"
        raise _Refused(f"the name {host!r} leads nowhere: {reason}", advice) from None
    # Each of the addresses gets an equal part of the time.
    seconds = max(0.01, deadline.remaining() / len(places))
    try:
        return socket.create_connection((host, port), seconds)
    except OSError as error:
        is_late = isinstance(error, TimeoutError)
        what = "no answer within the limit" if is_late else error.strerror
        text = f"port {port} of {places[-1][4][0]} cannot be reached: {what}"
        raise _Refused(text) from None


def _check_certificate(
    connection: socket.socket, host: str, expected: Expected, findings: list[Finding]
) -> Iterator[str]:
    """Yield the validity of the server's certificate, if it needs one."""
    security = expected.security
    if not security.tls_ca:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(security.tls_ca)
        if security.tls_certificate:
            context.load_cert_chain(security.tls_certificate, security.tls_key)
        # gRPC requires HTTP/2.
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(connection, server_hostname=host) as secured:
            validity = validity_of(dict(secured.getpeercert() or {}))
    except ssl.SSLCertVerificationError as error:
        advice = "have its certificate issued for this name, by who is in cluster.tls_ca"
        raise _Refused(f"its certificate is refused: {error.verify_message}", advice) from None
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or error
        advice = "start it with --tls-certificate and --tls-key"
        raise _Refused(f"it does not answer in TLS: {reason}", advice) from None
    if validity.days < SOON_DAYS:
        text, advice = f"its certificate is {validity}", "have it issued anew"
        findings.append(warning(expected.subject, text, advice))
    yield f"certificate {validity}"


def _describe(expected: Expected, deadline: Deadline) -> tuple[Any, float]:
    """Return the server's description of itself, and the median seconds of a round trip."""
    try:
        with FeatureClient(
            [expected.address], deadline=deadline.limit_seconds, security=expected.security
        ) as client:
            seconds = []
            for _ in range(1 + _ROUND_TRIPS):
                begun, client.deadline = time.perf_counter(), deadline.remaining()
                if not client.is_serving(0):
                    advice = "it is starting or ending; see what it prints"
                    raise _Refused("it says that it does not serve", advice)
                seconds.append(time.perf_counter() - begun)
            client.deadline = deadline.remaining()
            description = client.describe(0)
    except SecurityError as error:
        raise _Refused(f"not asked: cluster.{error}", "see docs/howto/secure.md") from None
    except CallError as error:
        advice = "see that a feature server listens there, with these certificates and this token"
        raise _Refused(f"{error.operation}: {error.detail}", advice) from None
    misfit = find_misfit(description, expected.server, expected.servers, expected.division)
    if misfit:
        advice = "order cluster.servers by part, and give every machine the same division"
        raise _Refused(misfit, advice)
    # The first round trip also made the connection, so it does not count.
    return description, median(seconds[1:])


def _compare_versions(subject: str, description: Any) -> Iterator[Finding]:
    client_versions = {"python": platform.python_version()} | {
        package: version(package) for package in ("numpy", "grpcio")
    }
    differ = [
        f"{name} {server_version} there, {client_versions[name]} here"
        for name, server_version in description.versions.items()
        if name in client_versions
        and numbers(server_version)[:2] != numbers(client_versions[name])[:2]
    ]
    if differ:
        yield warning(
            subject, ", ".join(differ), "what is sent is the same; install equal versions"
        )


def _widest(description: Any) -> TableSpec | None:
    """Return the table with the widest rows. Tables of features come before all others."""
    usable = [
        table
        for table in description.tables
        if table.count > 0 and table.dtype in DTYPES and 0 < table.dim <= _FETCH_BYTES // 8
    ]

    def preference(table: TableSpec) -> tuple[bool, int]:
        return table.kind == FEATURES, table.dim * little_endian(table.dtype).itemsize

    return max(usable, key=preference, default=None)
