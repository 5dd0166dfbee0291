"""Hosts as network namespaces, each linked to a bridge by a veth pair with limited rates.

The hosts and the bridge have namespaces of their own, with private addresses and no route out. They
do not change this machine's network, and no traffic leaves them.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hopper.bench.emulate.commands import NotAvailable, find_program, run
from hopper.bench.emulate.owner import is_leftover, is_ours, own_name

INTERFACE: Final = "eth0"
"""The name of a host's only interface, inside the host."""

_NAMESPACES: Final = Path("/run/netns")
_SUBNET: Final = "10.213.0"
_BURSTS: Final = ((100 * 10**6, 32 * 1024), (10**9, 128 * 1024))
_LARGEST_BURST: Final = 512 * 1024
_QUEUE_SECONDS: Final = 0.05
_LEAST_QUEUE: Final = 256 * 1024
_END_SECONDS: Final = 10.0


@dataclass(frozen=True)
class HostNetwork:
    """A host's network namespace, and the address of its interface."""

    namespace: str
    address: str


def burst_bytes(bits_per_second: int) -> int:
    """Return the size of the token filter's bucket for a rate.

    With less than 64 kB the filter splits large segments in software. That costs a core at
    1 Gbit/s but little at 100 Mbit/s, where a small bucket shapes traffic more evenly. Interface
    counters include the headers of segments only if these are split, so compare bytes only between
    runs with equal buckets.
    """
    for rate, burst in _BURSTS:
        if bits_per_second <= rate:
            return burst
    return _LARGEST_BURST


def check_rights() -> None:
    """Check that this process may make network namespaces.

    Raises
    ------
    NotAvailable: this process does not run as root, or ``ip`` or ``tc`` is missing.
    """
    if os.geteuid() != 0:
        raise NotAvailable(
            f"making network namespaces needs root; this process runs as user {os.geteuid()}"
        )
    for program in ("ip", "tc"):
        find_program(program)


def build_network(hosts: int, bits_per_second: int | None) -> tuple[HostNetwork, ...]:
    """Make the namespaces of hosts and of their bridge, which :func:`remove_network` removes.

    Parameters
    ----------
    hosts: number of hosts.
    bits_per_second: rate of every link in each direction; None = no limit.

    Raises
    ------
    NotAvailable: the system or the user does not allow it. Namespaces made so far remain.
    """
    bridge = own_name("bridge")
    networks = tuple(HostNetwork(own_name(f"host{i}"), f"{_SUBNET}.{i + 1}") for i in range(hosts))
    run("ip", "-batch", "-", batch=[f"netns add {name}" for name in
                                    (bridge, *(host.namespace for host in networks))])  # fmt: skip
    # Interfaces get no automatic addresses: with IPv6 they would send packets on their own.
    lines = ["link add br0 type bridge stp_state 0 mcast_snooping 0", *_up("br0"), *_up("lo")]
    for index, host in enumerate(networks):
        port = f"port{index}"
        lines.append(f"link add {port} type veth peer name {INTERFACE} netns {host.namespace}")
        lines += [f"link set {port} master br0", *_up(port)]
    run("ip", "-n", bridge, "-batch", "-", batch=lines)
    for host in networks:
        lines = [f"addr add {host.address}/24 dev {INTERFACE}", *_up(INTERFACE), *_up("lo")]
        run("ip", "-n", host.namespace, "-batch", "-", batch=lines)
    if bits_per_second is not None:
        for host in networks:
            _limit(host.namespace, [INTERFACE], bits_per_second)
        _limit(bridge, [f"port{index}" for index in range(hosts)], bits_per_second)
    return networks


def remove_network() -> None:
    """Kill the processes in this process's namespaces, and remove the namespaces.

    Raises
    ------
    NotAvailable: a namespace could not be removed; names the first such one.
    """
    _remove([name for name in _namespaces() if is_ours(name)])


def remove_leftover_networks() -> list[str]:
    """Remove the namespaces that ended processes have left; return their names."""
    leftovers = [name for name in _namespaces() if is_leftover(name)]
    _remove(leftovers)
    return leftovers


def end_processes(namespace: str) -> None:
    """Kill every process in a namespace, and return once they are gone."""
    deadline = time.monotonic() + _END_SECONDS
    while (pids := _pids_in(namespace)) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def _up(interface: str) -> list[str]:
    return [f"link set {interface} addrgenmode none", f"link set {interface} up"]


def _limit(namespace: str, interfaces: list[str], bits_per_second: int) -> None:
    burst = burst_bytes(bits_per_second)
    queue = max(_LEAST_QUEUE, burst + int(_QUEUE_SECONDS * bits_per_second / 8))
    lines = [
        f"qdisc add dev {interface} root tbf rate {bits_per_second}bit burst {burst}b "
        f"limit {queue}b"
        for interface in interfaces
    ]
    run("tc", "-n", namespace, "-batch", "-", batch=lines)


def _namespaces() -> list[str]:
    return [path.name for path in _NAMESPACES.iterdir()] if _NAMESPACES.is_dir() else []


def _pids_in(namespace: str) -> list[int]:
    try:
        return [int(word) for word in run("ip", "netns", "pids", namespace).split()]
    except NotAvailable:
        # Another process has removed the namespace.
        return []


def _remove(namespaces: list[str]) -> None:
    failed = []
    for name in namespaces:
        end_processes(name)
        try:
            run("ip", "netns", "delete", name)
        except NotAvailable as error:
            if name in _namespaces():
                failed.append(error)
    if failed:
        raise failed[0]
