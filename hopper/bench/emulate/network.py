"""Hosts as network namespaces, each linked to a bridge by a veth pair with limited rates.

The hosts and the bridge have namespaces of their own, with private addresses and no route out. They
do not change this machine's network, and no traffic leaves them.

Namespaces and cgroups are called ``hopper-<pid>-<start>-<part>``: the id of the process that made
them and the time at which it started, in clock ticks since boot. What a killed process has left is
recognised by its name, even if another process has taken the id.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hopper.process.enter_host import NAMESPACES, find_program

INTERFACE: Final = "eth0"
"""The name of a host's only interface, inside the host."""

_NAME: Final = re.compile(r"hopper-(\d+)-(\d+)-[a-z]+\d*")
_SUBNET: Final = "10.213.0"
_BURSTS: Final = ((100 * 10**6, 32 * 1024), (10**9, 128 * 1024))
_LARGEST_BURST: Final = 512 * 1024
_QUEUE_SECONDS: Final = 0.05
_LEAST_QUEUE: Final = 256 * 1024
_END_SECONDS: Final = 10.0
_COMMAND_SECONDS: Final = 30.0


class NotAvailable(Exception):
    """An emulated cluster is not possible here. The text says what is missing."""


@dataclass(frozen=True)
class HostNetwork:
    """A host's network namespace, and the address of its interface."""

    namespace: str
    address: str


def own_name(part: str) -> str:
    """Return the name of a part that this process makes, such as ``host0``."""
    pid = os.getpid()
    return f"hopper-{pid}-{_start_of(pid)}-{part}"


def is_ours(name: str) -> bool:
    """Return whether this process made the namespace or cgroup of a name."""
    match = _NAME.fullmatch(name)
    return match is not None and int(match[1]) == os.getpid() and not is_leftover(name)


def is_leftover(name: str) -> bool:
    """Return whether the process that made it has ended. False for any name of another form."""
    match = _NAME.fullmatch(name)
    return match is not None and _start_of(int(match[1])) != int(match[2])


def _start_of(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The process's name, in parentheses, may contain anything, so split only what follows it.
    fields = text.rpartition(")")[2].split()
    has_ended = fields[0] in ("Z", "X")
    return None if has_ended else int(fields[19])


def burst_bytes(bits_per_second: int) -> int:
    """Return the size of the token filter's bucket for a rate.

    With less than 64 kB the filter splits large segments in software. That costs a core at
    1 Gbit/s but little at 100 Mbit/s, where a small bucket shapes traffic more evenly. Interface
    counters include the headers of segments only if these are split, so compare bytes only between
    runs with equal buckets.
    """
    return next((burst for rate, burst in _BURSTS if bits_per_second <= rate), _LARGEST_BURST)


def check_rights() -> None:
    """Raise NotAvailable unless this process is root, with the programs ``ip`` and ``tc``."""
    if os.geteuid() != 0:
        raise NotAvailable(
            f"making network namespaces needs root; this process runs as user {os.geteuid()}"
        )
    for program in ("ip", "tc"):
        _require_program(program)


def build_network(hosts: int, bits_per_second: int | None) -> tuple[HostNetwork, ...]:
    """Make the namespaces of hosts and of their bridge, with links of a rate (None = no limit)."""
    bridge = own_name("bridge")
    networks = tuple(HostNetwork(own_name(f"host{i}"), f"{_SUBNET}.{i + 1}") for i in range(hosts))
    names = (bridge, *(host.namespace for host in networks))
    _run("ip", "-batch", "-", batch=[f"netns add {name}" for name in names])
    # Interfaces get no automatic addresses: with IPv6 they would send packets on their own.
    lines = ["link add br0 type bridge stp_state 0 mcast_snooping 0", *_up("br0"), *_up("lo")]
    for index, host in enumerate(networks):
        port = f"port{index}"
        lines.append(f"link add {port} type veth peer name {INTERFACE} netns {host.namespace}")
        lines += [f"link set {port} master br0", *_up(port)]
    _run("ip", "-n", bridge, "-batch", "-", batch=lines)
    for host in networks:
        lines = [f"addr add {host.address}/24 dev {INTERFACE}", *_up(INTERFACE), *_up("lo")]
        _run("ip", "-n", host.namespace, "-batch", "-", batch=lines)
    if bits_per_second is not None:
        for host in networks:
            _limit(host.namespace, [INTERFACE], bits_per_second)
        _limit(bridge, [f"port{index}" for index in range(hosts)], bits_per_second)
    return networks


def remove_networks(chosen: Callable[[str], bool]) -> list[str]:
    """Kill the processes in the namespaces whose names are chosen, and remove these namespaces."""
    names, failed = [name for name in _namespaces() if chosen(name)], []
    for name in names:
        end_processes(name)
        try:
            _run("ip", "netns", "delete", name)
        except NotAvailable as error:
            if name in _namespaces():
                failed.append(error)
    if failed:
        raise failed[0]
    return names


def end_processes(namespace: str) -> None:
    """Kill every process in a namespace, and return once they are gone."""
    deadline = time.monotonic() + _END_SECONDS
    while (pids := _pids_in(namespace)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _pids_in(namespace: str) -> list[int]:
    try:
        return [int(word) for word in _run("ip", "netns", "pids", namespace).split()]
    except NotAvailable:
        # Another process has removed the namespace.
        return []


def _namespaces() -> list[str]:
    return [path.name for path in NAMESPACES.iterdir()] if NAMESPACES.is_dir() else []


def _up(interface: str) -> list[str]:
    return [f"link set {interface} addrgenmode none", f"link set {interface} up"]


def _limit(namespace: str, interfaces: list[str], bits_per_second: int) -> None:
    burst = burst_bytes(bits_per_second)
    queue = max(_LEAST_QUEUE, burst + int(_QUEUE_SECONDS * bits_per_second / 8))
    qdisc = f"root tbf rate {bits_per_second}bit burst {burst}b limit {queue}b"
    lines = [f"qdisc add dev {interface} {qdisc}" for interface in interfaces]
    _run("tc", "-n", namespace, "-batch", "-", batch=lines)


def _require_program(name: str) -> str:
    """Return the path of a program, or raise NotAvailable."""
    path = find_program(name)
    if path is None:
        raise NotAvailable(f"the program `{name}` is not installed (Debian: package iproute2)")
    return path


def _run(program: str, *words: str, batch: Sequence[str] = ()) -> str:
    """Run ``ip`` or ``tc`` with lines of input, and return the output."""
    command = [_require_program(program), *words]
    try:
        done = subprocess.run(
            command,
            input="".join(f"{line}\n" for line in batch),
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_SECONDS,
            # Ctrl-C must reach only this process, which then removes what it has built.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotAvailable(f"`{program} {' '.join(words)}` failed: {error}") from error
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise NotAvailable(f"`{program} {' '.join(words)}` failed: {reason}")
    return done.stdout
