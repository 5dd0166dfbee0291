"""Check of the network between ranks, as far as one machine can see it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

from hopper.cluster.rank_network import (
    ADVICE,
    VARIABLE,
    Way,
    choose_interface,
    find_way,
    given_interface,
    is_loopback,
)
from hopper.doctor.case import Case
from hopper.doctor.finding import Finding, fine, wrong
from hopper.errors import ConfigError
from hopper.process.time_limit import finish_within

_SUBJECT = "network of ranks"
_ADVICE = f"{ADVICE} (docs/howto/several-machines.md)"


def check_network(case: Case) -> Iterator[Finding]:
    """Check the interface on which ranks of this machine will meet those of others."""
    if not case.elsewhere:
        yield fine(_SUBJECT, "all ranks are on this machine, and meet on its loopback interface")
        return
    try:
        interface, reason = given_interface(), f"as {VARIABLE} says"
        if interface is None:
            host, way = finish_within(case.limit, lambda: _find_way_out(case))
            interface, reason = choose_interface(way), f"on which they reach {host}{_about_name()}"
        if not case.config.cluster.insecure:
            interface.refuse_public()
    except (ConfigError, OSError) as error:
        yield wrong(_SUBJECT, error, _ADVICE)
        return
    if is_loopback(interface.address):
        yield wrong(_SUBJECT, f"{VARIABLE}: no other machine reaches {interface}", _ADVICE)
        return
    yield fine(_SUBJECT, f"ranks here will use {interface}, {reason}")


def _find_way_out(case: Case) -> tuple[str, Way]:
    """Return the first machine of the run to which this one has a way, and the way.

    Ranks take the way to the machine of rank 0. The name of that machine may lead it to itself.

    Raises
    ------
    OSError: there is none.
    """
    addresses = [entry.split(",")[0] for entry in case.config.cluster.servers]
    hosts = [address.rpartition(":")[0].strip("[]") for address in addresses]
    master = os.environ.get("MASTER_ADDR")
    for host in [master, *hosts] if master else hosts:
        try:
            way = find_way(host)
        except (OSError, UnicodeError):
            continue
        if not way.is_loopback:
            return host, way
    raise OSError(f"this machine has no way to any other of cluster.servers ({', '.join(hosts)})")


def _about_name() -> str:
    """Say that the name of this machine leads to itself, which gloo by itself would use."""
    name = socket.gethostname()
    try:
        way = find_way(name)
    except OSError:
        return ""
    return f"; this machine's name, {name}, leads to {way.host}" if way.is_loopback else ""
