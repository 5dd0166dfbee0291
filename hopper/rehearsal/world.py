"""The ranks of a cluster that is rehearsed, and the rows that they read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numba
import torch
from numpy.typing import NDArray

from cache_server.in_process import InProcessClient, open_servicers
from cache_server.row_source import SourceRequest
from cache_server.sampling import NeighbourDraw
from cache_server.servicer import FeatureServicer
from hopper.cluster import Cluster
from hopper.engines import Request
from hopper.features import PartitionedRows, RemoteRows
from hopper.features.source import RowKind
from hopper.partition.layouts import server_folder
from hopper.rehearsal.link import Link
from hopper.rehearsal.messages import Hall, Messages
from hopper.rehearsal.turns import Turns
from hopper.traffic import Traffic

_NO_LIMIT = 24 * 3600.0
"""seconds: nobody is late"""


class RehearsedCluster(Cluster):
    """One rank among ranks that take turns; what it sends is counted as :class:`Cluster` does."""

    def __init__(self, hall: Hall, rank: int, world: int, ranks_per_server: int) -> None:
        super().__init__(rank, world, ranks_per_server, torch.device("cpu"), _NO_LIMIT)
        self.messages = Messages(hall, rank)
        self._turns = hall.turns
        self.clock = hall.turns.clocks[rank].read
        if 1 < ranks_per_server < world:
            self._levels = self._make_levels()

    @contextmanager
    def watched(self, operation: str) -> Iterator[None]:
        """Errors are those of one process, and say what went wrong."""
        yield

    def busy(self) -> float:
        """This rank's processor seconds."""
        return self._turns.clocks[self.rank].busy()

    def settle(self) -> None:
        """Let all ranks go on at the moment at which the last has come; nothing is sent."""
        if self.world > 1:
            uncounted = copy.copy(self)
            uncounted.traffic = Traffic()
            uncounted.arrive("settling")


class RehearsedRows(RemoteRows):
    """Rows of other servers, asked for as over a network; a rank's clock adds what that takes."""

    def __init__(
        self, request: Request, servicers: Sequence[FeatureServicer], hall: Hall, rank: int
    ) -> None:
        names = [f"server {each} of the rehearsal" for each in range(len(servicers))]
        make_client = partial(InProcessClient, servicers)
        wire = request.config.cluster.feature_wire
        super().__init__(request.graph, names, _NO_LIMIT, make_client, wire=wire)
        self._clock, self._link = hall.turns.clocks[rank], hall.link
        self._carried = self._asked = 0

    def _count(self, server: int, sent: int, received: int) -> None:
        self._carry(sent + received)
        super()._count(server, sent, received)

    def _carry(self, nbytes: int) -> None:
        self._asked += 1
        self._carried += nbytes

    def _fetch(
        self,
        kind: RowKind,
        node_type: str,
        wanted: Mapping[int, NDArray[Any]],
        out: NDArray[Any],
        places: Mapping[int, slice | NDArray[Any]],
    ) -> None:
        super()._fetch(kind, node_type, wanted, out, places)
        self._arrive()

    def begin_sampling(
        self, draws: Mapping[int, Sequence[NeighbourDraw]], traffic: Traffic
    ) -> Callable[[], None]:
        """See :class:`RemoteRows`."""
        own = Traffic()
        wait = super().begin_sampling(draws, own)

        def arrive() -> None:
            wait()
            sent = own.take()
            self._asked, self._carried = len(draws), sum(sent.values())
            for cause, nbytes in sent.items():
                traffic.count(cause, nbytes)
            self._arrive()

        return arrive

    def _arrive(self) -> None:
        """What was asked for is there."""
        asked, carried = self._asked, self._carried
        self._asked = self._carried = 0
        if asked:
            self._clock.work(self._link.rows.of(asked, carried))
            self._clock.wait_until(self._clock.read() + self._link.fetch(carried))


class World:
    """All ranks of a request's cluster, in this process.

    Parameters
    ----------
    pace: seconds that a processor second of this machine takes a rank.
    threads: of kernels. With one, what they take of a processor does not depend on other work.
    """

    def __init__(self, request: Request, link: Link, pace: float, threads: int = 1) -> None:
        self._request, self.link, self._pace = request, link, pace
        self._threads = threads
        graph = request.graph
        self._servicers: list[FeatureServicer] = []
        if graph.book.servers > 1 and graph.layout.reads_remote_rows:
            data = request.config.data
            sources = {
                each: SourceRequest(name, data.features_options.get(each, {}))
                for each, name in data.features.items()
            }
            folders = [server_folder(graph.path, each) for each in range(graph.book.servers)]
            self._servicers = open_servicers(folders, sources)

    def run(self, work: Callable[[RehearsedCluster, PartitionedRows], Any]) -> list[Any]:
        """What every rank returns, the ranks taking turns; the first error is raised."""
        request, world = self._request, self._request.ranks
        turns = Turns(world, self._pace)
        hall = Hall(turns, self.link, world)
        per_server = request.config.cluster.ranks_per_server

        def run_rank(rank: int) -> Any:
            numba.set_num_threads(self._threads)
            cluster = RehearsedCluster(hall, rank, world, per_server)
            remote = None
            if self._servicers:
                remote = RehearsedRows(request, self._servicers, hall, rank)
            try:
                rows = PartitionedRows(request.graph, cluster.server, remote, cluster.traffic)
                return work(cluster, rows)
            finally:
                if remote is not None:
                    remote.close()

        with kernel_threads(self._threads):
            return turns.run(run_rank)


@contextmanager
def kernel_threads(count: int) -> Iterator[None]:
    """Let torch's kernels have so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
