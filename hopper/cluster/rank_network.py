"""The network interface on which a rank meets the others.

gloo by itself takes the address of this machine's name, which on many machines leads to 127.0.0.1.
So a rank names the interface on which it reaches the machine of rank 0, ``MASTER_ADDR``. On that
machine the name may lead to its loopback address too: its ranks take the interface with the address
under which ranks of other machines reach it.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import psutil

from hopper.errors import ConfigError

VARIABLE: Final = "GLOO_SOCKET_IFNAME"
"""Environment variable: the interface that the user or a launcher has chosen."""
ADVICE: Final = f"{VARIABLE}=<interface of a network that all machines of the run share>"
_OF_NCCL: Final = "NCCL_SOCKET_IFNAME"
_ANY_PORT: Final = 9


@dataclass(frozen=True)
class Way:
    """The way to a host: this machine's own address on it, and the host's."""

    own: str
    host: str

    @property
    def is_loopback(self) -> bool:
        """Whether the way does not leave this machine's loopback interface."""
        return is_loopback(self.host)


@dataclass(frozen=True)
class Interface:
    """A network interface of this machine, and the address that gloo listens on."""

    name: str
    address: str

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"

    def refuse_public(self) -> None:
        """Refuse an address of the public Internet: messages between ranks are not encrypted."""
        if ipaddress.ip_address(self.address).is_global:
            raise ConfigError(
                f"cluster.insecure: ranks would talk to each other through {self.address} "
                f"(interface {self.name}), which the whole world may reach; expected {VARIABLE} to "
                "name the interface of a private network, or true"
            )


def find_way(host: str) -> Way:
    """Find the way to a host, without sending anything. Ways through loopback come last.

    An OSError tells that the name leads nowhere, or that no way leads to it.
    """
    last: OSError = OSError(f"{host} has no address")
    ways = []
    for family, kind, _, _, address in socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind) as probe:
            try:
                # A datagram socket only looks for the route.
                probe.connect(address)
            except OSError as error:
                last = error
                continue
            ways.append(Way(_plain(probe.getsockname()[0]), _plain(str(address[0]))))
    if not ways:
        raise last
    return min(ways, key=lambda way: way.is_loopback)


def given_interface() -> Interface | None:
    """Return the interface that ``GLOO_SOCKET_IFNAME`` names; None if it names none.

    The error for one that is not there lists those of this machine.
    """
    given, interfaces = os.environ.get(VARIABLE), _interfaces()
    if not given:
        return None
    for interface in interfaces:
        # gloo takes several, separated by commas.
        if interface.name == given.partition(",")[0]:
            return interface
    raise ConfigError(
        f"{VARIABLE}: expected an interface of this machine ({_names(interfaces)}), got {given!r}"
    )


def choose_interface(way: Way, seen: Sequence[str] = ()) -> Interface:
    """Choose the interface on which this rank meets the others.

    Parameters
    ----------
    way: this rank's way to the machine of rank 0.
    seen: the addresses at which all ranks see that machine. The error for one that no interface
        has lists those of this machine.
    """
    given = given_interface()
    if given is not None:
        return given
    outside = [address for address in seen if not is_loopback(address)]
    wanted = outside if way.is_loopback and outside else [way.own]
    interfaces = _interfaces()
    for address in wanted:
        for interface, addresses in interfaces.items():
            is_own = is_loopback(address) and is_loopback(interface.address)
            if address in addresses or is_own:
                return interface
    raise ConfigError(
        f"{VARIABLE}: other ranks see this machine at {wanted[0]}, which no interface of it has "
        f"({_names(interfaces)}); expected one that all machines of the run can reach, got none"
    )


def take_interface(way: Way, seen: Sequence[str] = (), *, insecure: bool) -> Interface:
    """Choose the interface of :func:`choose_interface`, refuse a public one unless ``insecure``,
    and let gloo and NCCL of this process use it, unless the environment names others."""
    interface = choose_interface(way, seen)
    if not insecure:
        interface.refuse_public()
    os.environ.setdefault(VARIABLE, interface.name)
    os.environ.setdefault(_OF_NCCL, os.environ[VARIABLE])
    return interface


def is_loopback(address: str) -> bool:
    """Return whether an address is one of every machine's own."""
    return ipaddress.ip_address(address).is_loopback


def _interfaces() -> dict[Interface, list[str]]:
    """Return this machine's interfaces, with all addresses of each. gloo takes the first."""
    interfaces = {}
    for name, entries in psutil.net_if_addrs().items():
        is_internet = (socket.AF_INET, socket.AF_INET6)
        addresses = [_plain(entry.address) for entry in entries if entry.family in is_internet]
        if addresses:
            interfaces[Interface(name, addresses[0])] = addresses
    return interfaces


def _names(interfaces: Iterable[Interface]) -> str:
    return ", ".join(str(interface) for interface in interfaces)


def _plain(address: str) -> str:
    """Return an address of IPv6 without the interface that it is valid on."""
    return address.partition("%")[0]
