"""Checks of the feature servers: names, ports, certificates, descriptions and rates.

All addresses are asked at once. Rows are then fetched from one server after another, so that none
is measured while another one sends. The same time limit holds for each of the two phases.
"""

from __future__ import annotations

import platform
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from statistics import median
from typing import Any, Final

import numpy as np

from cache_server.client import FeatureClient, find_misfit
from cache_server.client.operation import Deadline
from cache_server.errors import CacheServerError, CallError, SecurityError
from cache_server.limits import IDS_PER_REQUEST
from cache_server.security import Security
from cache_server.store.manifest import TableSpec
from cache_server.store.table import FEATURES
from cache_server.wire import DTYPES, little_endian
from hopper.cluster.security import security_of
from hopper.doctor.case import Case
from hopper.doctor.certificates import SOON_DAYS, validity_of
from hopper.doctor.finding import Finding, fine, warning, wrong
from hopper.doctor.versions import numbers
from hopper.errors import GraphError
from hopper.partition.checksums import read_division
from hopper.process.time_limit import finish_within

_SUBJECT: Final = "cluster.servers"
_GRACE_SECONDS: Final = 1.0
"""Extra time for an answer which says that the limit has passed."""
_LEAST_SECONDS: Final = 0.05
_ROUND_TRIPS: Final = 5
_FETCH_BYTES: Final = 8 << 20
_FETCH_IDS: Final = 1 << 18
_ADVICE: Final = "see that it is started (hopper serve), and that nothing between drops packets"


@dataclass(frozen=True)
class _Expected:
    """One of so many servers, which ``cluster.servers`` names."""

    server: int
    servers: int
    division: str
    """the fingerprint of the division that it must serve; "" = any"""
    address: str
    security: Security

    @property
    def subject(self) -> str:
        return f"server {self.server}, {self.address}"


@dataclass(frozen=True)
class _Answer:
    """Warnings, and why ranks could not use a server, or its description and what is fine."""

    findings: tuple[Finding, ...]
    text: str = ""
    description: Any = None


class _Refused(Exception):
    """Ranks could not use the server. The text says why."""

    def __init__(self, text: str, advice: str = _ADVICE) -> None:
        super().__init__(text)
        self.advice = advice


def check_servers(case: Case) -> Iterator[Finding]:
    """Check each address of ``cluster.servers``."""
    servers = case.config.cluster.servers
    if not servers:
        text = "empty: `hopper train` starts a server for each part here, so none is asked"
        yield fine(_SUBJECT, text)
        return
    division = ""
    if case.request is not None:
        graph = case.request.graph
        # check_files reports a fingerprint that cannot be read.
        with suppress(GraphError):
            division = read_division(graph.path)
        if len(servers) != graph.book.servers:
            advice = "one address for each part, in their order; the graph's, or the list's, is old"
            text = f"{len(servers)} addresses; {graph.path} has {graph.book.servers} parts"
            yield wrong(_SUBJECT, text, advice)
    security = security_of(case.config)
    expected = [
        _Expected(number, len(servers), division, address, security)
        for number, entry in enumerate(servers)
        for address in entry.split(",")
    ]
    answers = _ask_all(expected, case.limit)
    deadline = Deadline(case.limit)
    for server, answer in zip(expected, answers, strict=True):
        yield from _judge(server, answer, deadline)


def _ask_all(expected: Sequence[_Expected], limit: float) -> list[_Answer]:
    """Probe all servers at once. A server without an answer in time counts as refusing."""
    late = f"did not answer within {limit:g} s"
    answers = [_Answer((wrong(server.subject, late),)) for server in expected]

    def ask(index: int) -> None:
        answers[index] = _ask(expected[index], limit)

    # Daemon threads: the process does not wait for one that hangs in the look-up of a name.
    threads = [
        threading.Thread(target=ask, args=(index,), name="doctor-server", daemon=True)
        for index in range(len(expected))
    ]
    for thread in threads:
        thread.start()
    deadline = Deadline(limit + _GRACE_SECONDS)
    for thread in threads:
        thread.join(max(0.0, deadline.remaining()))
    return list(answers)


def _judge(expected: _Expected, answer: _Answer, deadline: Deadline) -> Iterator[Finding]:
    yield from answer.findings
    if answer.description is None:
        return
    subject, remaining = expected.subject, deadline.remaining()
    if remaining < _LEAST_SECONDS:
        yield warning(subject, f"{answer.text}; rows were not asked for: the others took the time")
        return
    try:
        rate = _measure_rate(expected, answer.description, remaining)
    except CacheServerError as error:
        yield wrong(subject, error, "see what the server prints, and what is between it and here")
        return
    yield fine(subject, f"{answer.text}; {rate}")


def _ask(expected: _Expected, limit: float) -> _Answer:
    """Probe a server within ``limit`` seconds. Only the look-up of a name may take longer."""
    deadline, findings = Deadline(limit), list[Finding]()
    try:
        host, port = _split(expected.address)
        with _connect(host, port, deadline) as connection:
            texts = list(_check_certificate(connection, host, expected, findings))
        description, seconds = _describe(expected, deadline)
    except _Refused as error:
        return _Answer((*findings, wrong(expected.subject, error, error.advice)))
    findings += _compare_versions(expected.subject, description)
    texts = [
        f"serves part {expected.server} of {expected.servers}, {len(description.tables)} tables",
        f"at most {description.ids_per_request:,} ids a request",
        *texts,
        f"round trip {1e3 * seconds:.2f} ms",
    ]
    return _Answer(tuple(findings), "; ".join(texts), description)


def _measure_rate(expected: _Expected, description: Any, seconds: float) -> str:
    """Fetch some MiB of the server's rows twice, and describe the rate of the second time."""
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
    connection: socket.socket, host: str, expected: _Expected, findings: list[Finding]
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


def _describe(expected: _Expected, deadline: Deadline) -> tuple[Any, float]:
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
