"""Hosts as network namespaces: one veth pair each to a bridge, rate-limited in both directions.

Everything, the bridge included, lies in namespaces of its own with private addresses and no route
out of them: nothing of this machine's own network is touched, and no traffic leaves.
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
"""the name of a host's one interface, as the host sees it"""

_NAMESPACES: Final = Path("/run/netns")
_SUBNET: Final = "10.213.0"
_BURSTS: Final = ((100 * 10**6, 32 * 1024), (10**9, 128 * 1024))
_LARGEST_BURST: Final = 512 * 1024
_QUEUE_SECONDS: Final = 0.05
_LEAST_QUEUE: Final = 256 * 1024
_END_SECONDS: Final = 10.0


@dataclass(frozen=True)
class HostNetwork:
    """A host's place in the network: its namespace, and the address of its interface."""

    namespace: str
    address: str


def burst_bytes(bits_per_second: int) -> int:
    """The bucket of the token filter for a rate.

    Below 64 kB the filter splits large segments in software, which costs a core at 1 Gbit/s; at
    100 Mbit/s that cost is small and a fine bucket is wanted. Interface counters see the headers of
    segments only where they are split: compare bytes only between runs of the same burst.
    """
    for rate, burst in _BURSTS:
        if bits_per_second <= rate:
            return burst
    return _LARGEST_BURST


def check_rights() -> None:
    """Whether there is any use in trying.

    Raises
    ------
    NotAvailable: this process is not root's, or ``ip`` or ``tc`` is missing.
    """
    if os.geteuid() != 0:
        raise NotAvailable(
            f"making network namespaces needs root; this process runs as user {os.geteuid()}"
        )
    for program in ("ip", "tc"):
        find_program(program)


def build_network(hosts: int, bits_per_second: int | None) -> tuple[HostNetwork, ...]:
    """Make the namespaces of ``hosts`` hosts and of their bridge; :func:`remove_network` ends them.

    Parameters
    ----------
    bits_per_second: of every link in each direction; None = as fast as it goes.

    Raises
    ------
    NotAvailable: this system or this user cannot have them; what was made until then remains.
    """
    bridge = own_name("bridge")
    built = tuple(HostNetwork(own_name(f"host{i}"), f"{_SUBNET}.{i + 1}") for i in range(hosts))
    run("ip", "-batch", "-", batch=[f"netns add {name}" for name in
                                    (bridge, *(host.namespace for host in built))])  # fmt: skip
    # No address of its own making: with IPv6 an interface would talk without being asked.
    lines = ["link add br0 type bridge stp_state 0 mcast_snooping 0", *_up("br0"), *_up("lo")]
    for index, host in enumerate(built):
        port = f"port{index}"
        lines.append(f"link add {port} type veth peer name {INTERFACE} netns {host.namespace}")
        lines += [f"link set {port} master br0", *_up(port)]
    run("ip", "-n", bridge, "-batch", "-", batch=lines)
    for host in built:
        lines = [f"addr add {host.address}/24 dev {INTERFACE}", *_up(INTERFACE), *_up("lo")]
        run("ip", "-n", host.namespace, "-batch", "-", batch=lines)
    if bits_per_second is not None:
        for host in built:
            _limit(host.namespace, [INTERFACE], bits_per_second)
        _limit(bridge, [f"port{index}" for index in range(hosts)], bits_per_second)
    return built


def remove_network() -> None:
    """End what runs in this process's namespaces, and remove them.

    Raises
    ------
    NotAvailable: some could not be removed; names the first.
    """
    _remove([name for name in _namespaces() if is_ours(name)])


def remove_leftover_networks() -> list[str]:
    """Do the same to the namespaces of processes that have ended; returns their names."""
    left = [name for name in _namespaces() if is_leftover(name)]
    _remove(left)
    return left


def end_processes(namespace: str) -> None:
    """End every process in a namespace, by SIGKILL; returns once they are gone."""
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
        # Somebody else removed it meanwhile, or the kernel holds no such namespace any more.
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
