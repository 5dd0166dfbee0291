"""Rows of other servers, read through their feature servers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.client import FeatureClient
from cache_server.client.calls import RemoteDraw
from cache_server.errors import CacheServerError, ServerUnavailable
from cache_server.errors import DeadlineExceeded as CallDeadlineExceeded
from cache_server.security import PLAIN, Security
from hopper.cluster.traffic import Traffic
from hopper.errors import ClusterError, ConfigError, DeadlineExceeded, GraphError, ServerLost
from hopper.features.source import RowKind
from hopper.graph.layout import StoredFeatures, stored_features
from hopper.graph.schema import Labels
from hopper.graph.topology import Ids
from hopper.partition import PartitionedGraph
from hopper.partition.checksums import read_division


class RemoteRows:
    """Reads rows from the feature servers that store them, from all servers at once.

    It connects when it is first used, and once more in a process that was forked since.
    ``addresses`` are "host:port" of every server, in order of server index, and ``deadline`` are
    the seconds that one call may take, or all calls in a block of :meth:`one_operation`.
    ``make_client`` takes the keywords of :class:`cache_server.client.FeatureClient`. ``wire`` is
    the form that float32 features are rounded to on the network; "stored" = not rounded. A
    ConfigError tells that feature servers at these addresses cannot serve the graph's layout.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        addresses: Sequence[str],
        deadline: float,
        make_client: Callable[..., FeatureClient] = FeatureClient,
        security: Security = PLAIN,
        wire: str = "stored",
    ) -> None:
        if len(addresses) != graph.book.servers:
            raise ConfigError(
                f"cluster.servers: expected {graph.book.servers} addresses, one per partition, "
                f"got {len(addresses)}"
            )
        if not all(partition.is_whole for partition in graph.partitions):
            raise ConfigError(
                f"cluster.servers: servers of {graph.path} store some nodes of a type each, which "
                "feature servers do not serve; expected to read rows by file (LocalRows)"
            )
        self._graph = graph
        self._deadline = deadline
        self._wire = "" if wire == "stored" else wire
        self._spent: float | None = None
        """seconds that calls have taken in the running :meth:`one_operation` block; None = none"""
        self._traffic = Traffic()
        self._client = make_client(
            addresses,
            deadline=deadline,
            on_transfer=self._count,
            division=read_division(graph.path),
            security=security,
        )

    def count_into(self, traffic: Traffic) -> None:
        """Count requests, and the servers' replies to them, in ``traffic`` from now on."""
        self._traffic = traffic

    def _count(self, _server: int, sent: int, received: int) -> None:
        self._traffic.count("feature", sent + received)

    def wait_until_serving(self, limit: float) -> None:
        """Wait until every server answers; raise ServerLost or DeadlineExceeded after ``limit``."""
        with map_errors():
            self._client.wait_until_serving(limit)

    def gather(self, kind: RowKind, node_type: str, ids: Ids) -> NDArray[Any]:
        """Fetch rows in the order asked for; see :meth:`FeatureSource.gather`."""
        homes = self._graph.book.home(node_type, ids)
        out = self._empty(kind, node_type, len(ids))
        if (homes[1:] >= homes[:-1]).all():
            # Ids are in order of their homes already, so each reply fills one slice.
            slices = self._slice_by_server(homes)
            ids_by_server = {server: ids[part] for server, part in slices.items()}
            self._fetch(kind, node_type, ids_by_server, out, slices)
        else:
            self.fill(kind, node_type, ids, out, np.arange(ids.size))
        return out

    def begin_sampling(
        self, draws: Mapping[int, Sequence[RemoteDraw]], traffic: Traffic
    ) -> Callable[[], None]:
        """Ask other servers to draw neighbours, and return what waits for the answers."""

        def count(_server: int, sent: int, received: int) -> None:
            traffic.count("topology", sent + received)

        with map_errors():
            return map_errors()(self._client.begin_sampling(draws, count))

    def columns(self, node_type: str, ids: Ids, server: int) -> NDArray[Any]:
        """Fetch the columns of features [n, width] that one server stores of each row."""
        width = len(self._graph.layout.columns(node_type, server))
        out = self._empty("features", node_type, ids.size, width)
        self._fetch("features", node_type, {server: ids}, out, {server: slice(None)})
        return out

    def fill(self, kind: RowKind, node_type: str, ids: Ids, out: NDArray[Any], places: Ids) -> None:
        """Fetch rows into a table; see :meth:`RemoteSource.fill`."""
        # Servers have ranges of ids, and read ascending rows from disk in the least time.
        order = np.argsort(ids)
        homes = self._graph.book.home(node_type, ids[order])
        orders = {s: order[part] for s, part in self._slice_by_server(homes).items()}
        ids_by_server = {server: ids[order] for server, order in orders.items()}
        places_by_server = {server: places[order] for server, order in orders.items()}
        self._fetch(kind, node_type, ids_by_server, out, places_by_server)

    def _slice_by_server(self, homes: Ids) -> dict[int, slice]:
        """Return the servers that occur in ascending ``homes``, each with its slice of them."""
        bounds = np.searchsorted(homes, np.arange(self._graph.book.servers + 1)).tolist()
        ranges = enumerate(pairwise(bounds))
        return {server: slice(first, stop) for server, (first, stop) in ranges if stop > first}

    def _fetch(
        self,
        kind: RowKind,
        node_type: str,
        ids_by_server: Mapping[int, Ids],
        out: NDArray[Any],
        places: Mapping[int, slice | Ids],
    ) -> None:
        begun = time.monotonic()
        try:
            with map_errors():
                limit = self._deadline - (self._spent or 0.0)
                # Rows that are stored in fewer bits travel as they are.
                is_rounded = kind == "features" and out.dtype == np.float32
                form = self._wire if is_rounded else ""
                self._client.fetch_rows(kind, node_type, ids_by_server, out, places, limit, form)
        finally:
            if self._spent is not None:
                self._spent += time.monotonic() - begun

    @contextmanager
    def one_operation(self) -> Iterator[None]:
        """Let all fetches in the block share one deadline."""
        self._spent = 0.0
        try:
            yield
        finally:
            self._spent = None

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _empty(
        self, kind: RowKind, node_type: str, rows: int, width: int | None = None
    ) -> NDArray[Any]:
        """Return a table for ``rows`` stored rows with ``width`` feature dimensions; None = all."""
        schema = self._graph.schema
        stored: StoredFeatures | Labels | None = schema.labels.get(node_type)
        if kind == "features":
            stored = stored_features(schema.table(node_type), width)
        if stored is None:
            raise GraphError(f"{self._graph.path}: {node_type!r} has no {kind}")
        return np.empty((rows, stored.columns), stored.dtype)


@contextmanager
def map_errors() -> Iterator[None]:
    """Raise the feature service's errors as Hopper's own, with the same texts."""
    try:
        yield
    except CallDeadlineExceeded as error:
        raise DeadlineExceeded(
            f"feature server {error.server} at {error.address}",
            f"{error.operation} ({error.detail})",
            error.limit_seconds,
        ) from error
    except ServerUnavailable as error:
        raise ServerLost(str(error)) from error
    except CacheServerError as error:
        raise ClusterError(str(error)) from error
