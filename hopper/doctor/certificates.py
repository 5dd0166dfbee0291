"""Files that protect connections: certificates that are valid and fit, secrets that are secret."""

from __future__ import annotations

import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cache_server.errors import SecurityError
from hopper.config.sections import Cluster
from hopper.doctor.case import Case
from hopper.doctor.finding import Finding, fine, warning, wrong
from hopper.doctor.tls import SOON_DAYS, Validity, authorities_of, check_vouched, read_validity
from hopper.train.security import FILES, security_of

_LOOPBACK: Final = "127.0.0.1"
_RENEW: Final = "have it issued anew (docs/cluster.md); files are read again when they change"


def check_certificates(case: Case) -> Iterator[Finding]:
    """What ``[cluster]`` names: the files, and what is in them."""
    own = case.config.cluster
    if not any(getattr(own, key) for key in FILES):
        yield _without_files(case)
        return
    try:
        security_of(case.config).check_client([])
    except SecurityError as error:
        yield wrong("certificates and token", f"cluster.{error}")
        return
    if own.tls_ca:
        yield from _authorities(own.tls_ca)
    if own.tls_certificate:
        yield from _certificate(own, has_servers_here=not own.servers)
    for key in ("tls_key", "token_file"):
        if getattr(own, key):
            yield _check_secret(f"cluster.{key}", Path(getattr(own, key)))


def _without_files(case: Case) -> Finding:
    subject = "certificates and token"
    if not case.elsewhere:
        return fine(subject, "none are named: connections stay on this machine's loopback")
    if case.config.cluster.insecure:
        found = "cluster.insecure: rows travel in the open, to anybody who reaches a server"
        return warning(subject, found, "right only where nobody else can reach the network")
    # Refused with the configuration.
    return warning(subject, "none are named, and servers are on other machines")


def _authorities(file: str) -> Iterator[Finding]:
    subject, found = "cluster.tls_ca", authorities_of(file)
    if not found:
        advice = "name the certificates of those who vouch for servers, not of the servers"
        yield warning(subject, f"{file}: no certificate of an authority is in it", advice)
    elif all(each.days < 0 for each in found):
        yield wrong(subject, f"{file}: {max(found, key=lambda each: each.end)}", _RENEW)
    else:
        # One that has expired does no harm beside one that has not.
        yield _judge(subject, file, max(found, key=lambda each: each.end))


def _certificate(own: Cluster, has_servers_here: bool) -> Iterator[Finding]:
    subject = "cluster.tls_certificate"
    file, key = own.tls_certificate, own.tls_key
    try:
        found = _judge(subject, file, read_validity(file, key))
    except ssl.SSLError as error:
        yield warning(subject, f"{file}: when it expires cannot be told: {error.reason}")
        return
    yield found
    if found.state == "wrong" or not own.tls_ca:
        return
    try:
        # Servers that are started here are asked under this name.
        check_vouched(file, key, own.tls_ca, _LOOPBACK if has_servers_here else None)
    except ssl.SSLCertVerificationError as error:
        advice = "have it issued by who is in cluster.tls_ca, for the names in cluster.servers"
        if has_servers_here:
            advice = f"have it issued by who is in cluster.tls_ca, for IP:{_LOOPBACK} too"
        yield wrong(
            subject, f"{file}: not vouched for by {own.tls_ca}: {error.verify_message}", advice
        )


def _judge(subject: str, file: str, validity: Validity) -> Finding:
    found = f"{file}: {validity}"
    if validity.days < 0:
        return wrong(subject, found, _RENEW)
    if validity.days < SOON_DAYS:
        return warning(subject, found, _RENEW)
    return fine(subject, found)


def _check_secret(subject: str, file: Path) -> Finding:
    mode = file.stat().st_mode
    if mode & stat.S_IROTH:
        found = f"{file}: every user of this machine can read it (mode {stat.S_IMODE(mode):o})"
        return warning(subject, found, f"chmod 600 {file}")
    return fine(subject, f"{file}: closed to other users (mode {stat.S_IMODE(mode):o})")
