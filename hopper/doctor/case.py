"""What is looked at."""

from __future__ import annotations

from dataclasses import dataclass

from cache_server.security import is_loopback
from hopper.config import Config
from hopper.doctor.finding import look_within
from hopper.engines import Request
from hopper.partition import PartitionedGraph
from hopper.partition.layouts import server_folder


@dataclass(frozen=True)
class Case:
    """A configuration on this machine.

    Attributes
    ----------
    config: as it was given.
    request: the same with its graph, whose files it does not compare with their checksums; None
        where there is no graph.
    elsewhere: whether feature servers, and so ranks, are on other machines too.
    checksums: whether files are read to compare them with their checksums.
    limit: seconds that servers have to answer in.
    """

    config: Config
    request: Request | None
    elsewhere: bool
    checksums: bool
    limit: float

    @property
    def known(self) -> Request:
        """The request, of checks that are made where there is a graph."""
        assert self.request is not None
        return self.request

    @property
    def ranks_here(self) -> int:
        """How many ranks this machine runs: all, or those of one server."""
        return self.config.cluster.ranks_per_server if self.elsewhere else self.known.ranks

    @property
    def told_ranks(self) -> str:
        """The same in words."""
        count = self.ranks_here
        source = " (cluster.ranks_per_server)" if self.elsewhere else ""
        return f"{count} rank{'s' if count > 1 else ''} here{source}"


def is_elsewhere(config: Config, limit: float) -> bool:
    """Whether a feature server has an address that is not this machine's loopback, or a name that
    nobody knows within ``limit`` seconds."""
    addresses = [each for several in config.cluster.servers for each in several.split(",")]
    try:
        return not look_within(limit, lambda: all(map(is_loopback, addresses)))
    except TimeoutError:
        return True


def folders_here(graph: PartitionedGraph) -> list[int]:
    """The servers whose folders this machine has."""
    servers = range(graph.book.servers)
    return [each for each in servers if server_folder(graph.path, each).is_dir()]
