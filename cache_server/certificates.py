"""Reading certificates with :mod:`ssl`: how long they are valid, and who issued them.

ssl describes a certificate only after a handshake, so these functions make one in this process.
"""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which ssl has no name"""
_TURNS: Final = 8
"""turns of each end of a handshake, which needs at most three"""
_DAY: Final = 86_400.0
SOON_DAYS: Final = 30
"""a certificate that expires within this many days causes a warning"""


@dataclass(frozen=True)
class Validity:
    """When a certificate is valid, in seconds since 1970."""

    begin: float
    end: float

    @property
    def days(self) -> float:
        """Days until the end; negative if it has passed."""
        return (self.end - time.time()) / _DAY

    @property
    def is_now(self) -> bool:
        """Whether it has begun and not ended."""
        return self.begin <= time.time() <= self.end

    def __str__(self) -> str:
        begin, end = (time.strftime("%Y-%m-%d", time.gmtime(s)) for s in (self.begin, self.end))
        if self.days < 0:
            return f"expired on {end}, {-self.days:.0f} days ago"
        if not self.is_now:
            return f"not valid before {begin}; is this machine's clock right?"
        return f"valid until {end}, {self.days:.0f} days from now"


def validity_of(certificate: dict[str, Any]) -> Validity:
    """Return the validity of a certificate that ``ssl.SSLSocket.getpeercert`` returned."""
    begin, end = (ssl.cert_time_to_seconds(certificate[key]) for key in ("notBefore", "notAfter"))
    return Validity(begin, end)


def find_fault(authorities: str, certificate: str, key: str) -> tuple[str, str] | None:
    """Find the first file, and the reason, for which the other end would refuse certificates."""
    if authorities:
        validities = authorities_of(authorities)
        # An expired certificate does no harm beside a valid one.
        if validities and not any(validity.is_now for validity in validities):
            return authorities, str(max(validities, key=lambda validity: validity.end))
    if not certificate:
        return None
    try:
        validity = read_validity(certificate, key)
    except ssl.SSLError:
        # One that may only be a client's cannot be judged in a server's place.
        return None
    if not validity.is_now:
        return certificate, str(validity)
    try:
        if authorities:
            check_issued(certificate, key, authorities, None)
    except ssl.SSLCertVerificationError as error:
        return certificate, f"not vouched for by {authorities}: {error.verify_message}"
    return None


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
    return validity_of(_shake_hands(client, certificate, key, None))


def check_issued(certificate: str, key: str, authorities: str, name: str | None) -> None:
    """Verify a certificate as the other end of a connection would."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(authorities)
    _shake_hands(client, certificate, key, name)


def client_context(authorities: str, certificate: str, key: str) -> ssl.SSLContext:
    """Make the context of a connection to a feature server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authorities)
    if certificate:
        context.load_cert_chain(certificate, key, password="")  # none
    # gRPC requires HTTP/2.
    context.set_alpn_protocols(["h2"])
    return context


def _shake_hands(
    client: ssl.SSLContext, certificate: str, key: str, name: str | None
) -> dict[str, Any]:
    """Connect two ends in memory; return the server's certificate as the client sees it."""
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
