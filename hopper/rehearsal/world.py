"""All ranks of a request's cluster as threads of this process, and the rows that they read."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import numba
import torch
from numpy.typing import NDArray

from cache_server.client.calls import RemoteDraw
from cache_server.client.in_process import InProcessClient, open_servicers
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
from hopper.rehearsal.clock import Link, RankClock

T = TypeVar("T")


class ThreadCluster(Cluster):
    """A rank that is a thread; counts what it sends as :class:`Cluster` does."""

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


class TimedRows(RemoteRows):
    """Rows of other servers; what a network takes for them is added to the rank's clock."""

    def __init__(self, clock: RankClock, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._clock = clock

    def _fetch(
        self,
        kind: RowKind,
        node_type: str,
        ids_by_server: Mapping[int, NDArray[Any]],
        out: NDArray[Any],
        places: Mapping[int, slice | NDArray[Any]],
    ) -> None:
        traffic = self._traffic
        self._traffic = traffic.apart()
        super()._fetch(kind, node_type, ids_by_server, out, places)
        self._take_time(len(ids_by_server), self._traffic, traffic)
        self._traffic = traffic

    def begin_sampling(
        self, draws: Mapping[int, Sequence[RemoteDraw]], traffic: Traffic
    ) -> Callable[[], None]:
        """Ask servers to draw neighbours; see :meth:`RemoteRows.begin_sampling`."""
        apart = traffic.apart()
        wait = super().begin_sampling(draws, apart)

        def finish() -> None:
            wait()
            self._take_time(len(draws), apart, traffic)

        return finish

    def _take_time(self, requests: int, apart: Traffic, traffic: Traffic) -> None:
        sent = apart.take()
        traffic.add(sent)
        self._clock.fetch(requests, sum(sent.values()))


def run_ranks(
    world: int,
    ranks_per_server: int,
    work: Callable[[ThreadCluster], T],
    link: Link | None = None,
    timeout: float = 600.0,
) -> list[T]:
    """Run ``work`` as every rank, each a thread; return all results, or raise the first error.

    Parameters
    ----------
    link: if given, ranks' clocks count processor seconds, and the time that messages take over the
        link. None = on real clocks.
    timeout: deadline of every wait, seconds.
    """
    backend, results = InMemoryBackend(world), dict[int, T]()

    def run_rank(rank: int) -> None:
        try:
            clock = None if link is None else RankClock(rank, link)
            numba.set_num_threads(1)
            results[rank] = work(ThreadCluster(backend, rank, ranks_per_server, timeout, clock))
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


def rehearse(
    request: Request,
    work: Callable[[ThreadCluster, PartitionedRows], T],
    link: Link | None = None,
    timeout: float = 600.0,
) -> list[T]:
    """Run ``work`` as every rank of a request's cluster, as :func:`run_ranks` does; ranks read
    other servers' rows without a network."""
    graph, data, servicers = request.graph, request.config.data, list[FeatureServicer]()
    if graph.book.servers > 1 and graph.layout.reads_remote_rows:
        folders = [server_folder(graph.path, server) for server in range(graph.book.servers)]
        sources = {
            node_type: SourceRequest(name, data.features_options.get(node_type, {}))
            for node_type, name in data.features.items()
        }
        servicers = open_servicers(folders, sources)
    names = [f"server {number}" for number in range(len(servicers))]
    client = partial(InProcessClient, servicers)
    wire = request.config.cluster.feature_wire

    def run_rank(cluster: ThreadCluster) -> T:
        with ExitStack() as exits:
            remote = None
            if servicers:
                clock = cluster.rank_clock
                make_rows = RemoteRows if clock is None else partial(TimedRows, clock)
                remote = make_rows(graph, names, timeout, client, wire=wire)
                exits.callback(remote.close)
            return work(cluster, PartitionedRows(graph, cluster.server, remote, cluster.traffic))

    per_server = request.config.cluster.ranks_per_server
    return run_ranks(request.ranks, per_server, run_rank, link, timeout)


@contextmanager
def _steady_times() -> Iterator[None]:
    """Let torch's kernels use one thread, and collect no garbage, so that times vary less."""
    threads, collects = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(1)
    # A collection goes through the objects of all ranks, and would count for the one that makes it.
    gc.disable()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if collects:
            gc.enable()
