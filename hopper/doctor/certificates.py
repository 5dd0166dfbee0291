"""Checks of the files that protect connections: certificates, keys and the token."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from cache_server.errors import SecurityError
from cache_server.security import readers_of, shake_hands
from hopper.cluster.security import FILES, security_of
from hopper.config import Cluster
from hopper.doctor.case import Case
from hopper.doctor.finding import Finding, fine, warning, wrong

SOON_DAYS: Final = 30
"""a certificate that expires within this many days causes a warning"""
_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which ssl has no name"""
_DAY: Final = 86_400.0
_LOOPBACK: Final = "127.0.0.1"
_RENEW: Final = "have it issued anew (docs/howto/secure.md), and start servers and ranks again"


@dataclass(frozen=True)
class Validity:
    """When a certificate is valid, in seconds since 1970."""

    begin: float
    end: float

    @property
    def days(self) -> float:
        """Days until the end; negative if it has passed."""
        return (self.end - time.time()) / _DAY

    def __str__(self) -> str:
        begin, end = (time.strftime("%Y-%m-%d", time.gmtime(s)) for s in (self.begin, self.end))
        if self.days < 0:
            return f"expired on {end}, {-self.days:.0f} days ago"
        if self.begin > time.time():
            return f"not valid before {begin}; is this machine's clock right?"
        return f"valid until {end}, {self.days:.0f} days from now"


def validity_of(certificate: dict[str, Any]) -> Validity:
    """Return the validity of a certificate that ``ssl.SSLSocket.getpeercert`` returned."""
    begin, end = (ssl.cert_time_to_seconds(certificate[key]) for key in ("notBefore", "notAfter"))
    return Validity(begin, end)


def authorities_of(file: str) -> list[Validity]:
    """Return the validity of each authority's certificate in a PEM file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(file)
    return [validity_of(certificate) for certificate in context.get_ca_certs()]


def read_validity(certificate: str, key: str) -> Validity:
    """Return the validity of the first certificate in a PEM file, expired or not."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(certificate)
    # The certificate is its own authority here, and may have expired.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    return validity_of(shake_hands(client, certificate, key))


def check_certificates(case: Case) -> Iterator[Finding]:
    """Check the files that ``[cluster]`` names, and their content."""
    cluster = case.config.cluster
    if not any(getattr(cluster, key) for key in FILES):
        yield _judge_no_files(case)
        return
    try:
        security_of(case.config).check_client([])
    except SecurityError as error:
        yield wrong("certificates and token", f"cluster.{error}")
        return
    if cluster.tls_ca:
        yield from _check_authorities(cluster.tls_ca)
    if cluster.tls_certificate:
        yield from _check_certificate(cluster, has_servers_here=not cluster.servers)
    for key in ("tls_key", "token_file"):
        if file := getattr(cluster, key):
            if readers := readers_of(file):
                yield warning(f"cluster.{key}", f"{file}: {readers}", f"chmod 600 {file}")
            else:
                yield fine(f"cluster.{key}", f"{file}: closed to other users")


def _judge_no_files(case: Case) -> Finding:
    subject = "certificates and token"
    if not case.elsewhere:
        return fine(subject, "none are named: connections stay on this machine's loopback")
    if case.config.cluster.insecure:
        text = "cluster.insecure: rows travel in the open, to anybody who reaches a server"
        return warning(subject, text, "right only where nobody else can reach the network")
    # The check of the configuration refuses this too.
    return warning(subject, "none are named, and servers are on other machines")


def _check_authorities(file: str) -> Iterator[Finding]:
    subject, authorities = "cluster.tls_ca", authorities_of(file)
    if not authorities:
        advice = "name the certificates of those who vouch for servers, not of the servers"
        yield warning(subject, f"{file}: no certificate of an authority is in it", advice)
        return
    yield _judge(subject, file, max(authorities, key=lambda authority: authority.end))


def _check_certificate(cluster: Cluster, has_servers_here: bool) -> Iterator[Finding]:
    subject = "cluster.tls_certificate"
    file, key = cluster.tls_certificate, cluster.tls_key
    try:
        yield _judge(subject, file, read_validity(file, key))
    except ssl.SSLError as error:
        yield warning(subject, f"{file}: when it expires cannot be told: {error.reason}")
        return
    if not (cluster.tls_ca and has_servers_here):
        return
    try:
        # Clients connect to servers that are started here under this name.
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.load_verify_locations(cluster.tls_ca)
        shake_hands(client, file, key, _LOOPBACK)
    except ssl.SSLCertVerificationError as error:
        advice = f"have it issued for IP:{_LOOPBACK} too"
        yield wrong(subject, f"{file}: {error.verify_message}", advice)


def _judge(subject: str, file: str, validity: Validity) -> Finding:
    text = f"{file}: {validity}"
    if validity.days < SOON_DAYS:
        return warning(subject, text, _RENEW)
    return fine(subject, text)
