"""The emulated cluster: building, describing and removing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopper.bench.emulate.limits import bound_hosts, remove_limits
from hopper.bench.emulate.network import (
    HostNetwork,
    NotAvailable,
    build_network,
    check_rights,
    is_leftover,
    is_ours,
    remove_networks,
)
from hopper.bench.emulate.request import Request
from hopper.errors import ClusterError
from hopper.process.enter_host import enter_words
from hopper.process.signal_handlers import defer_signals


@dataclass(frozen=True)
class Host:
    """One emulated host: its network, and the cgroups of its processes (none = no bound)."""

    network: HostNetwork
    cgroups: tuple[Path, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The host's network namespace, and its cgroups."""
        return (self.network.namespace, *map(str, self.cgroups))

    @property
    def prefix(self) -> tuple[str, ...]:
        """The words in front of a command that let this process start it on the host."""
        return enter_words(self.names)


@dataclass(frozen=True)
class EmulatedCluster:
    """The hosts of a request, in order of server, or the reason why they cannot be built here.

    ``removed`` has the names of namespaces and cgroups that ended processes had left.
    """

    request: Request
    hosts: tuple[Host, ...]
    why_not: str | None = None
    removed: tuple[str, ...] = ()

    @property
    def effective(self) -> bool:
        """Return whether there are hosts."""
        return bool(self.hosts)

    def describe(self) -> dict[str, Any]:
        """Return the entry of results.json about the emulation."""
        return self.request.describe() | {"effective": self.effective, "why_not": self.why_not}


@contextmanager
def emulate_hosts(request: Request) -> Iterator[EmulatedCluster]:
    """Build the hosts of a request, and remove them with all their processes after the context.

    Leftovers of killed processes are removed first. Signals that end this process take effect only
    after building or removing is complete. If the hosts cannot be built there is no error: the
    cluster has no hosts, and says why.
    """
    try:
        with defer_signals():
            cluster = _build(request)
        yield cluster
    finally:
        with defer_signals():
            _take_down()


def _build(request: Request) -> EmulatedCluster:
    removed: tuple[str, ...] = ()
    try:
        check_rights()
        removed = tuple(sorted({*remove_networks(is_leftover), *remove_limits(is_leftover)}))
        networks = build_network(request.hosts, request.bits_per_second)
        groups = bound_hosts(request.hosts, request.host_cpus, request.host_memory)
        return EmulatedCluster(request, tuple(map(Host, networks, groups)), removed=removed)
    except NotAvailable as error:
        _take_down()
        return EmulatedCluster(request, (), str(error), removed)


def _take_down() -> None:
    """Remove all hosts that this process has built."""
    try:
        try:
            remove_networks(is_ours)
        finally:
            remove_limits()
    except NotAvailable as error:
        raise ClusterError(f"the emulated hosts cannot be taken down: {error}") from error
