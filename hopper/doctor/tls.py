"""Certificates as :mod:`ssl` reads them: until when they are valid, and who vouches for them.

A certificate is shown in a handshake within this process, which is what ssl tells of one for.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from typing import Any, Final

_NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which ssl does not name"""
_TURNS: Final = 8
"""of each end of a handshake; it needs three at most"""
_DAY: Final = 86_400.0
SOON_DAYS: Final = 30
"""a certificate that ends sooner is worth a warning"""


@dataclass(frozen=True)
class Validity:
    """Until when a certificate is valid, in seconds since 1970."""

    end: float

    @property
    def days(self) -> float:
        """That are left; negative once it has expired."""
        return (self.end - time.time()) / _DAY

    def __str__(self) -> str:
        day = time.strftime("%Y-%m-%d", time.gmtime(self.end))
        left = self.days
        if left < 0:
            return f"expired on {day}, {-left:.0f} days ago"
        return f"valid until {day}, {left:.0f} days from now"


def validity_of(shown: dict[str, Any]) -> Validity:
    """Of a certificate as ``ssl.SSLSocket.getpeercert`` tells it."""
    return Validity(ssl.cert_time_to_seconds(str(shown["notAfter"])))


def authorities_of(file: str) -> list[Validity]:
    """Of the authorities in a PEM file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(file)
    return [validity_of(each) for each in context.get_ca_certs()]


def read_validity(certificate: str, key: str) -> Validity:
    """Of the first certificate in a PEM file, expired or not.

    Raises
    ------
    ssl.SSLError, OSError: the files cannot be used.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(certificate)
    # It vouches for itself here, and may have expired.
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    return validity_of(_shake_hands(client, _showing(certificate, key), None))


def check_vouched(certificate: str, key: str, authorities: str, name: str | None) -> None:
    """Refuse a certificate as the other end would.

    Parameters
    ----------
    authorities: PEM file of those who may vouch for it.
    name: the host that it has to name; None = any.

    Raises
    ------
    ssl.SSLCertVerificationError: says why.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(authorities)
    _shake_hands(client, _showing(certificate, key), name)


def client_context(authorities: str, certificate: str, key: str) -> ssl.SSLContext:
    """Of a connection to a feature server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authorities)
    if certificate:
        context.load_cert_chain(certificate, key, password="")  # nosec B106 # none
    # What gRPC speaks.
    context.set_alpn_protocols(["h2"])
    return context


def _showing(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key, password="")  # nosec B106 # none
    return context


def _shake_hands(
    client: ssl.SSLContext, server: ssl.SSLContext, name: str | None
) -> dict[str, Any]:
    """Let two ends meet in memory; returns the server's certificate, as the client is told it."""
    client.check_hostname = name is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(_TURNS):
        waiting = [end for end in waiting if not _has_met(end)]
    if waiting:
        raise ssl.SSLError("the two ends of a handshake within this process did not meet")
    return dict(ends[0].getpeercert() or {})


def _has_met(end: ssl.SSLObject) -> bool:
    """Whether an end is done, after what it can do with what the other one has sent."""
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
