"""Checks of the files that protect connections: certificates, keys and the token."""

from __future__ import annotations

import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cache_server.errors import SecurityError
from hopper.config import Cluster
from hopper.doctor.case import Case
from hopper.doctor.finding import Finding, fine, warning, wrong
from hopper.doctor.tls import SOON_DAYS, Validity, authorities_of, check_issued, read_validity
from hopper.train.security import FILES, security_of

_LOOPBACK: Final = "127.0.0.1"
_RENEW: Final = "have it issued anew (docs/howto/secure.md); files are read again when they change"


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
            yield _check_secret(f"cluster.{key}", Path(getattr(cluster, key)))


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
    # An expired certificate does no harm beside a valid one.
    last = max(authorities, key=lambda authority: authority.end)
    if all(authority.days < 0 for authority in authorities):
        yield wrong(subject, f"{file}: {last}", _RENEW)
    else:
        yield _judge(subject, file, last)


def _check_certificate(cluster: Cluster, has_servers_here: bool) -> Iterator[Finding]:
    subject = "cluster.tls_certificate"
    file, key = cluster.tls_certificate, cluster.tls_key
    try:
        finding = _judge(subject, file, read_validity(file, key))
    except ssl.SSLError as error:
        yield warning(subject, f"{file}: when it expires cannot be told: {error.reason}")
        return
    yield finding
    if finding.state == "wrong" or not cluster.tls_ca:
        return
    try:
        # Clients connect to servers that are started here under this name.
        check_issued(file, key, cluster.tls_ca, _LOOPBACK if has_servers_here else None)
    except ssl.SSLCertVerificationError as error:
        advice = "have it issued by who is in cluster.tls_ca, for the names in cluster.servers"
        if has_servers_here:
            advice = f"have it issued by who is in cluster.tls_ca, for IP:{_LOOPBACK} too"
        yield wrong(
            subject, f"{file}: not vouched for by {cluster.tls_ca}: {error.verify_message}", advice
        )


def _judge(subject: str, file: str, validity: Validity) -> Finding:
    text = f"{file}: {validity}"
    if validity.days < 0:
        return wrong(subject, text, _RENEW)
    if validity.days < SOON_DAYS:
        return warning(subject, text, _RENEW)
    return fine(subject, text)


def _check_secret(subject: str, file: Path) -> Finding:
    mode = file.stat().st_mode
    if mode & stat.S_IROTH:
        text = f"{file}: every user of this machine can read it (mode {stat.S_IMODE(mode):o})"
        return warning(subject, text, f"chmod 600 {file}")
    return fine(subject, f"{file}: closed to other users (mode {stat.S_IMODE(mode):o})")
