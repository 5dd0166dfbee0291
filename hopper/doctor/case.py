"""The subject of the checks: a configuration on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from cache_server.security import is_loopback
from hopper.config import Config
from hopper.engines import Request
from hopper.partition import PartitionedGraph
from hopper.partition.description import server_folder
from hopper.process.time_limit import finish_within


@dataclass(frozen=True)
class Case:
    """A configuration on this machine.

    Attributes
    ----------
    config: the configuration as given.
    request: the configuration with its graph, without verification of files; None if there is no
        graph.
    elsewhere: whether other machines run feature servers, and so ranks.
    checksums: whether to compare files with their checksums.
    limit: seconds within which servers must answer.
    """

    config: Config
    request: Request | None
    elsewhere: bool
    checksums: bool
    limit: float

    @property
    def graph_request(self) -> Request:
        """The request, for checks that run only if there is a graph."""
        assert self.request is not None
        return self.request

    @property
    def ranks_here(self) -> int:
        """The number of ranks on this machine: all, or those of one server."""
        return self.config.cluster.ranks_per_server if self.elsewhere else self.graph_request.ranks

    @property
    def ranks_text(self) -> str:
        """:attr:`ranks_here` in words, with its source."""
        count = self.ranks_here
        source = " (cluster.ranks_per_server)" if self.elsewhere else ""
        return f"{count} rank{'s' if count > 1 else ''} here{source}"


def is_elsewhere(config: Config, limit: float) -> bool:
    """Return whether a feature server's address is not on this machine's loopback.

    A name that is not resolved within ``limit`` seconds counts as elsewhere.
    """
    addresses = [address for entry in config.cluster.servers for address in entry.split(",")]
    try:
        return not finish_within(limit, lambda: all(map(is_loopback, addresses)))
    except TimeoutError:
        return True


def folders_here(graph: PartitionedGraph) -> list[int]:
    """Return the servers whose folders this machine has."""
    servers = range(graph.book.servers)
    return [server for server in servers if server_folder(graph.path, server).is_dir()]
