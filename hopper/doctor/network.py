"""Check of the network between ranks, as far as one machine can see it."""

from __future__ import annotations

from collections.abc import Iterator

from hopper.doctor.case import Case
from hopper.doctor.finding import Finding, find_refusal, fine
from hopper.train.security import check_network_of_ranks

_SUBJECT = "network of ranks"


def check_network(case: Case) -> Iterator[Finding]:
    """Check that ranks do not meet on a public network."""
    if not case.elsewhere:
        yield fine(_SUBJECT, "all ranks are on this machine, and meet on its loopback interface")
        return
    # On a network there are at least two ranks.
    advice = "GLOO_SOCKET_IFNAME=<interface of a private network> (docs/howto/several-machines.md)"
    refusal = find_refusal(_SUBJECT, lambda: check_network_of_ranks(case.config, 2), advice)
    yield refusal or fine(_SUBJECT, "ranks meet on no address of the public Internet")
