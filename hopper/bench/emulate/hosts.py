"""The emulated cluster: built, described, and taken down whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopper.bench.emulate.commands import NotAvailable, signals_held
from hopper.bench.emulate.enter import entering
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
from hopper.train.feature_servers import Place


@dataclass(frozen=True)
class Host:
    """One emulated host: its network, and the cgroups of what runs on it (none = no bound)."""

    network: HostNetwork
    cgroups: tuple[Path, ...]

    @property
    def place(self) -> Place:
        """Where this process starts the host's server and ranks."""
        return Place(self.network.address, entering(self.network.namespace, self.cgroups))


@dataclass(frozen=True)
class EmulatedCluster:
    """What came of a request.

    Attributes
    ----------
    hosts: in order of server; none where they cannot be had.
    why_not: what is missing then, as a sentence.
    removed: names of what processes that have ended had left behind.
    ranks: what trains on the hosts.
    """

    request: Request
    hosts: tuple[Host, ...]
    why_not: str | None = None
    removed: tuple[str, ...] = ()
    ranks: StandingRanks = field(default_factory=StandingRanks)

    @property
    def effective(self) -> bool:
        """Whether there are hosts."""
        return bool(self.hosts)

    def describe(self) -> dict[str, Any]:
        """For results.json."""
        return self.request.describe() | {"effective": self.effective, "why_not": self.why_not}


@contextmanager
def emulated(request: Request) -> Iterator[EmulatedCluster]:
    """Build the hosts of a request; they are gone, with all that runs on them, after this context.

    What earlier processes left that could not take it down is removed first. Signals to end this
    process take effect only once building or taking down is through.

    Raises
    ------
    ClusterError: what was built cannot be taken down. Where it cannot be built there is no error:
        the cluster has no hosts, and says why.
    """
    try:
        with signals_held():
            cluster = _build(request)
        try:
            yield cluster
        finally:
            with signals_held():
                cluster.ranks.stop()
    finally:
        with signals_held():
            _take_down()


def _build(request: Request) -> EmulatedCluster:
    removed: tuple[str, ...] = ()
    try:
        check_rights()
        removed = tuple(remove_leftover_networks() + remove_leftover_limits())
        networks = build_network(request.hosts, request.bits_per_second)
        groups = bound_hosts(request.hosts, request.host_cpus, request.host_memory)
        hosts = tuple(Host(*each) for each in zip(networks, groups, strict=True))
        return EmulatedCluster(request, hosts, removed=removed)
    except NotAvailable as error:
        _take_down()
        return EmulatedCluster(request, (), str(error), removed)


def _take_down() -> None:
    """Remove what this process built; where it could not build there is nothing."""
    try:
        try:
            remove_network()
        finally:
            remove_limits()
    except NotAvailable as error:
        raise ClusterError(f"the emulated hosts cannot be taken down: {error}") from error
