"""The emulated cluster: building, describing and removing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopper.bench.emulate.commands import NotAvailable
from hopper.bench.emulate.enter import enter_words
from hopper.bench.emulate.limits import bound_hosts, remove_leftover_limits, remove_limits
from hopper.bench.emulate.network import (
    HostNetwork,
    build_network,
    check_rights,
    remove_leftover_networks,
    remove_network,
)
from hopper.bench.emulate.request import Request
from hopper.bench.emulate.standing_ranks import StandingRanks
from hopper.errors import ClusterError
from hopper.signal_handlers import defer_signals
from hopper.train.feature_servers import Place


@dataclass(frozen=True)
class Host:
    """One emulated host: its network, and the cgroups of its processes (none = no bound)."""

    network: HostNetwork
    cgroups: tuple[Path, ...]

    @property
    def place(self) -> Place:
        """The place at which this process starts the host's server and ranks."""
        return Place(self.network.address, enter_words(self.network.namespace, self.cgroups))


@dataclass(frozen=True)
class EmulatedCluster:
    """The hosts of a request, or the reason why there are none.

    Attributes
    ----------
    request: the request.
    hosts: the hosts in order of server; empty if they cannot be built here.
    why_not: says in that case what is missing.
    removed: names of namespaces and cgroups that ended processes had left and that were removed.
    ranks: the ranks on the hosts.
    """

    request: Request
    hosts: tuple[Host, ...]
    why_not: str | None = None
    removed: tuple[str, ...] = ()
    ranks: StandingRanks = field(default_factory=StandingRanks)

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

    Raises
    ------
    ClusterError: the hosts cannot be removed.
    """
    try:
        with defer_signals():
            cluster = _build(request)
        try:
            yield cluster
        finally:
            with defer_signals():
                cluster.ranks.stop()
    finally:
        with defer_signals():
            _take_down()


def _build(request: Request) -> EmulatedCluster:
    removed: tuple[str, ...] = ()
    try:
        check_rights()
        removed = tuple(remove_leftover_networks() + remove_leftover_limits())
        networks = build_network(request.hosts, request.bits_per_second)
        groups = bound_hosts(request.hosts, request.host_cpus, request.host_memory)
        hosts = tuple(
            Host(network, cgroups) for network, cgroups in zip(networks, groups, strict=True)
        )
        return EmulatedCluster(request, hosts, removed=removed)
    except NotAvailable as error:
        _take_down()
        return EmulatedCluster(request, (), str(error), removed)


def _take_down() -> None:
    """Remove all hosts that this process has built."""
    try:
        try:
            remove_network()
        finally:
            remove_limits()
    except NotAvailable as error:
        raise ClusterError(f"the emulated hosts cannot be taken down: {error}") from error
