"""All ranks of a request's cluster as threads of this process, and the rows that they read."""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import numba
import torch
from numpy.typing import NDArray

from cache_server.client.in_process import InProcessClient, open_servicers
from cache_server.sampling import RemoteDraw
from cache_server.service.servicer import FeatureServicer
from cache_server.store.row_source import SourceRequest
from hopper.cluster.cluster import Cluster
from hopper.cluster.traffic import Traffic
from hopper.engines import Request
from hopper.errors import DeadlineExceeded
from hopper.features import PartitionedRows, RemoteRows
from hopper.features.source import RowKind
from hopper.partition.description import server_folder
from hopper.rehearsal.backend import InMemoryBackend, RankBackend
from hopper.rehearsal.clock import Link, RankClock, SerialScheduler

T = TypeVar("T")


class ThreadCluster(Cluster):
    """A rank that is a thread; counts what it sends as :class:`Cluster` does.

    Attributes
    ----------
    rank_clock: the rank's clock of a rehearsal; None = real clocks.
    """

    def __init__(
        self,
        backend: InMemoryBackend,
        rank: int,
        ranks_per_server: int,
        timeout: float,
        rank_clock: RankClock | None,
    ) -> None:
        world = len(backend.groups[0].ranks)
        super().__init__(rank, world, ranks_per_server, torch.device("cpu"), timeout)
        self.messages = RankBackend(backend, rank, rank_clock)
        self.rank_clock = rank_clock
        if rank_clock is not None:
            self.clock = rank_clock.read
        if 1 < ranks_per_server < world:
            self._make_levels()

    @contextmanager
    def explain_failures(
        self, operation: str, limit: float | None = None, advice: str = ""
    ) -> Iterator[None]:
        """Name the operation whose deadline has passed. Other errors say what failed."""
        try:
            yield
        except TimeoutError as error:
            limit = self.timeout if limit is None else limit
            raise DeadlineExceeded(f"rank {self.rank}", operation, limit, advice) from error

    def settle(self) -> None:
        """Wait for all ranks, without counting any message."""
        uncounted = copy.copy(self)
        uncounted.traffic = Traffic()
        uncounted.arrive("settling")


class TimedRows(RemoteRows):
    """Rows of other servers; what a network takes for them is added to the rank's clock."""

    def __init__(self, clock: RankClock, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._clock, self._nbytes = clock, 0

    def _count(self, server: int, sent: int, received: int) -> None:
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
        self._nbytes = 0
        super()._fetch(kind, node_type, ids_by_server, out, places)
        self._clock.fetch(len(ids_by_server), self._nbytes)

    def begin_sampling(
        self, draws: Mapping[int, Sequence[RemoteDraw]], traffic: Traffic
    ) -> Callable[[], None]:
        """Ask servers to draw neighbours; see :meth:`RemoteRows.begin_sampling`."""
        draw_traffic = traffic.apart()
        wait = super().begin_sampling(draws, draw_traffic)

        def finish() -> None:
            """Wait for the draws, and count what they sent and took."""
            wait()
            sent = draw_traffic.take()
            traffic.add(sent)
            self._clock.fetch(len(draws), sum(sent.values()))

        return finish


def run_ranks(
    world: int,
    ranks_per_server: int,
    work: Callable[[ThreadCluster], T],
    link: Link | None = None,
    timeout: float = 600.0,
) -> list[T]:
    """Run ``work`` as every rank, each a thread, and return all results.

    Parameters
    ----------
    link: if given, ranks take turns, their clocks count processor seconds, and the time that
        messages take over the link. None = ranks run at once, on real clocks.
    timeout: deadline of every wait, seconds. It is not kept where ranks take turns: they wait for
        as long as others compute, and an error tells if all wait.

    Raises
    ------
    The first error of any rank.
    """
    backend, scheduler = InMemoryBackend(world), SerialScheduler(world)
    results: dict[int, T] = {}

    def run_rank(rank: int) -> None:
        """Do a rank's work, and end the other ranks' waits if it fails."""
        clock = None if link is None else RankClock(rank, link, scheduler)
        try:
            with nullcontext() if clock is None else clock.turns():
                numba.set_num_threads(1)
                cluster = ThreadCluster(backend, rank, ranks_per_server, timeout, clock)
                results[rank] = work(cluster)
        except BaseException as error:
            backend.abort(error)

    threads = [
        threading.Thread(target=run_rank, args=(rank,), name=f"rank-{rank}", daemon=True)
        for rank in range(world)
    ]
    with _steady_times():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if backend.failure is not None:
        raise backend.failure
    return [results[rank] for rank in range(world)]


class World:
    """All ranks of a request's cluster, which read other servers' rows without a network.

    Parameters
    ----------
    link, timeout: as of :func:`run_ranks`.
    """

    def __init__(self, request: Request, link: Link | None = None, timeout: float = 600.0) -> None:
        self._request, self._link, self._timeout = request, link, timeout
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

    def run(self, work: Callable[[ThreadCluster, PartitionedRows], T]) -> list[T]:
        """Run ``work`` as every rank, and return all results; raise the first error of any rank."""
        request = self._request

        def run_rank(cluster: ThreadCluster) -> T:
            """Do a rank's work with its rows."""
            remote = self._open_rows(cluster.rank_clock) if self._servicers else None
            rows = PartitionedRows(request.graph, cluster.server, remote, cluster.traffic)
            try:
                return work(cluster, rows)
            finally:
                if remote is not None:
                    remote.close()

        per_server = request.config.cluster.ranks_per_server
        return run_ranks(request.ranks, per_server, run_rank, self._link, self._timeout)

    def _open_rows(self, clock: RankClock | None) -> RemoteRows:
        make_rows = RemoteRows if clock is None else partial(TimedRows, clock)
        return make_rows(
            *(self._request.graph, [f"server {index}" for index in range(len(self._servicers))]),
            *(self._timeout, partial(InProcessClient, self._servicers)),
            wire=self._request.config.cluster.feature_wire,
        )


@contextmanager
def _steady_times() -> Iterator[None]:
    """Let torch's kernels use one thread, and collect no garbage, so that times vary less."""
    threads, collects = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(1)
    # A collection goes through the objects of all ranks, and would count for the one that runs.
    gc.disable()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if collects:
            gc.enable()
