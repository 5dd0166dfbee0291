"""The ranks of a rehearsed cluster, and the rows that they read."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numba
import torch
from numpy.typing import NDArray

from cache_server.client.in_process import InProcessClient, open_servicers
from cache_server.sampling import RemoteDraw
from cache_server.service.servicer import FeatureServicer
from cache_server.store.row_source import SourceRequest
from hopper.cluster import Cluster
from hopper.engines import Request
from hopper.features import PartitionedRows, RemoteRows
from hopper.features.source import RowKind
from hopper.partition.file_names import server_folder
from hopper.rehearsal.link import Link
from hopper.rehearsal.messages import Hall, Messages
from hopper.rehearsal.turns import Turns
from hopper.traffic import Traffic

_NO_LIMIT = 24 * 3600.0
"""seconds: longer than any wait in a rehearsal"""


class RehearsedCluster(Cluster):
    """A rank of a rehearsal; counts what it sends as :class:`Cluster` does."""

    def __init__(self, hall: Hall, rank: int, world: int, ranks_per_server: int) -> None:
        super().__init__(rank, world, ranks_per_server, torch.device("cpu"), _NO_LIMIT)
        self.messages = Messages(hall, rank)
        self._turns = hall.turns
        self.clock = hall.turns.clocks[rank].read
        if 1 < ranks_per_server < world:
            self._make_levels()

    @contextmanager
    def explain_failures(
        self, operation: str, limit: float | None = None, advice: str = ""
    ) -> Iterator[None]:
        """Do nothing: all ranks are in this process, and their errors already say what failed."""
        yield

    def busy(self) -> float:
        """Return this rank's processor seconds."""
        return self._turns.clocks[self.rank].busy()

    def settle(self) -> None:
        """Wait for all ranks, without counting any message."""
        if self.world > 1:
            uncounted = copy.copy(self)
            uncounted.traffic = Traffic()
            uncounted.arrive("settling")


class RehearsedRows(RemoteRows):
    """Rows of other servers, fetched from servicers in this process.

    The time that a network would take is added to the rank's clock.
    """

    def __init__(
        self, request: Request, servicers: Sequence[FeatureServicer], hall: Hall, rank: int
    ) -> None:
        names = [f"server {server} of the rehearsal" for server in range(len(servicers))]
        make_client = partial(InProcessClient, servicers)
        wire = request.config.cluster.feature_wire
        super().__init__(request.graph, names, _NO_LIMIT, make_client, wire=wire)
        self._clock, self._link = hall.turns.clocks[rank], hall.link
        self._nbytes = self._requests = 0
        """of the running operation"""

    def _count(self, server: int, sent: int, received: int) -> None:
        self._requests += 1
        self._nbytes += sent + received
        super()._count(server, sent, received)

    def _fetch(
        self,
        kind: RowKind,
        node_type: str,
        ids_by_server: Mapping[int, NDArray[Any]],
        out: NDArray[Any],
        places: Mapping[int, slice | NDArray[Any]],
    ) -> None:
        super()._fetch(kind, node_type, ids_by_server, out, places)
        self._add_time()

    def begin_sampling(
        self, draws: Mapping[int, Sequence[RemoteDraw]], traffic: Traffic
    ) -> Callable[[], None]:
        """Ask servers to draw neighbours; see :meth:`RemoteRows.begin_sampling`."""
        draw_traffic = Traffic()
        wait = super().begin_sampling(draws, draw_traffic)

        def finish() -> None:
            """Wait for the draws, and count what they sent and took."""
            wait()
            sent = draw_traffic.take()
            self._requests, self._nbytes = len(draws), sum(sent.values())
            for cause, nbytes in sent.items():
                traffic.count(cause, nbytes)
            self._add_time()

        return finish

    def _add_time(self) -> None:
        """Add the time of the finished operation to the rank's clock."""
        requests, nbytes = self._requests, self._nbytes
        self._requests = self._nbytes = 0
        if requests:
            self._clock.work(self._link.rows.of(requests, nbytes))
            self._clock.wait_until(self._clock.read() + self._link.fetch(nbytes))


class World:
    """All ranks of a request's cluster, in this process.

    Parameters
    ----------
    link: the time that messages take.
    pace: seconds that a rank needs for a processor second of this machine.
    threads: threads of kernels. With one, their processor time does not depend on other work.
    """

    def __init__(self, request: Request, link: Link, pace: float, threads: int = 1) -> None:
        self._request, self.link, self._pace = request, link, pace
        self._threads = threads
        graph = request.graph
        self._servicers: list[FeatureServicer] = []
        if graph.book.servers > 1 and graph.layout.reads_remote_rows:
            data = request.config.data
            sources = {
                node_type: SourceRequest(name, data.features_options.get(node_type, {}))
                for node_type, name in data.features.items()
            }
            folders = [server_folder(graph.path, server) for server in range(graph.book.servers)]
            self._servicers = open_servicers(folders, sources)

    def run(self, work: Callable[[RehearsedCluster, PartitionedRows], Any]) -> list[Any]:
        """Run ``work`` as every rank in turns, and return all results; raise the first error."""
        request, world = self._request, self._request.ranks
        turns = Turns(world, self._pace)
        hall = Hall(turns, self.link, world)
        per_server = request.config.cluster.ranks_per_server

        def run_rank(rank: int) -> Any:
            """Do a rank's work with its cluster and its rows."""
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
    """Let torch's kernels use ``count`` threads during the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
