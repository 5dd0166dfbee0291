"""Checks of the files that protect connections: certificates, keys and the token."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Final

from cache_server.certificates import (
    SOON_DAYS,
    Validity,
    authorities_of,
    check_issued,
    read_validity,
)
from cache_server.errors import SecurityError
from cache_server.security import readers_of
from hopper.config import Cluster
from hopper.doctor.case import Case
from hopper.doctor.finding import Finding, fine, warning, wrong
from hopper.train.security import FILES, security_of

_LOOPBACK: Final = "127.0.0.1"
_RENEW: Final = "have it issued anew (docs/howto/secure.md), and start servers and ranks again"


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
        if getattr(cluster, key):
            yield _check_secret(f"cluster.{key}", getattr(cluster, key))


def _judge_no_files(case: Case) -> Finding:
    """Return the finding for a cluster without any of the files."""
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
        check_issued(file, key, cluster.tls_ca, _LOOPBACK)
    except ssl.SSLCertVerificationError as error:
        advice = f"have it issued for IP:{_LOOPBACK} too"
        yield wrong(subject, f"{file}: {error.verify_message}", advice)


def _judge(subject: str, file: str, validity: Validity) -> Finding:
    text = f"{file}: {validity}"
    if validity.days < SOON_DAYS:
        return warning(subject, text, _RENEW)
    return fine(subject, text)


def _check_secret(subject: str, file: str) -> Finding:
    readers = readers_of(file)
    if readers:
        return warning(subject, f"{file}: {readers}", f"chmod 600 {file}")
    return fine(subject, f"{file}: closed to other users")
