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
from cache_server.errors import CacheServerError, ServerUnavailable
from cache_server.errors import DeadlineExceeded as CallDeadlineExceeded
from cache_server.sampling import NeighbourDraw
from cache_server.security import PLAIN, Security
from hopper.errors import ClusterError, ConfigError, DeadlineExceeded, GraphError, ServerLost
from hopper.features.source import RowKind
from hopper.graph.row_form import stored_features
from hopper.partition import PartitionedGraph
from hopper.partition.checksums import read_division
from hopper.traffic import Traffic


class RemoteRows:
    """Reads rows from the feature servers of their homes, all servers asked at once.

    Parameters
    ----------
    addresses: "host:port" by server.
    deadline: seconds that one gather may take, or one operation of several.
    make_client: what asks them, of the keywords of :class:`cache_server.client.FeatureClient`.
    security: how servers and this rank know each other.
    wire: the form that float32 rows of features are rounded to for the way; "stored" = none.
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
        if any(held.part.parts > 1 for held in graph.holdings):
            raise ConfigError(
                f"cluster.servers: servers of {graph.path} store some nodes of a type each, which "
                "feature servers do not serve; expected to read rows by file (LocalRows)"
            )
        self._graph = graph
        self._deadline = deadline
        self._wire = "" if wire == "stored" else wire
        self._spent: float | None = None
        """seconds of the operation under way, if there is one"""
        self._traffic = Traffic()
        self._client = make_client(
            addresses,
            deadline=deadline,
            on_transfer=self._count,
            division=read_division(graph.path),
            security=security,
        )

    def count_into(self, traffic: Traffic) -> None:
        """See :class:`RemoteSource`; a reply is counted on the server's behalf."""
        self._traffic = traffic

    def _count(self, _server: int, sent: int, received: int) -> None:
        self._traffic.count("feature", sent + received)

    def wait_until_serving(self, limit: float) -> None:
        """Wait for every server to answer.

        Raises
        ------
        ServerLost, DeadlineExceeded: names the server that did not, and the limit.
        """
        with _mapped_errors():
            self._client.wait_until_serving(limit)

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        """See :class:`FeatureSource`."""
        homes = self._graph.book.home(node_type, ids)
        out = self._empty(kind, node_type, len(ids))
        if (homes[1:] >= homes[:-1]).all():
            # Where ids already stand by home, a reply fills one slice instead of scattered rows.
            by_server = self._by_server(homes)
            wanted = {server: ids[part] for server, part in by_server}
            self._fetch(kind, node_type, wanted, out, dict(by_server))
        else:
            self.fill(kind, node_type, ids, out, np.arange(ids.size))
        return out

    def begin_sampling(
        self, draws: Mapping[int, Sequence[NeighbourDraw]], traffic: Traffic
    ) -> Callable[[], None]:
        """Begin to draw neighbours of other servers' nodes, by server; several threads may.

        Parameters
        ----------
        traffic: where requests and replies are counted, the latter on the servers' behalf.

        Returns
        -------
        What waits until all have answered; its errors are those of :meth:`gather`.
        """

        def count(_server: int, sent: int, received: int) -> None:
            traffic.count("topology", sent + received)

        with _mapped_errors():
            finish = self._client.begin_sampling(draws, count)

        def wait() -> None:
            with _mapped_errors():
                finish()

        return wait

    def columns(self, node_type: str, ids: NDArray[np.int64], server: int) -> NDArray[Any]:
        """See :class:`RemoteSource`."""
        width = self._graph.layout.columns(node_type, server).width
        out = self._empty("features", node_type, ids.size, width)
        self._fetch("features", node_type, {server: ids}, out, {server: slice(None)})
        return out

    def fill(
        self,
        kind: RowKind,
        node_type: str,
        ids: NDArray[np.int64],
        out: NDArray[Any],
        places: NDArray[np.int64],
    ) -> None:
        """See :class:`RowFiller`."""
        homes = self._graph.book.home(node_type, ids)
        order = np.argsort(homes, kind="stable")
        parts = [(server, order[part]) for server, part in self._by_server(homes[order])]
        wanted = {server: ids[part] for server, part in parts}
        self._fetch(kind, node_type, wanted, out, {server: places[part] for server, part in parts})

    def _by_server(self, homes: NDArray[np.int64]) -> list[tuple[int, slice]]:
        """The stretch of every server that occurs in ascending homes."""
        bounds = np.searchsorted(homes, np.arange(self._graph.book.servers + 1)).tolist()
        return [(i, slice(a, b)) for i, (a, b) in enumerate(pairwise(bounds)) if b > a]

    def _fetch(
        self,
        kind: RowKind,
        node_type: str,
        wanted: Mapping[int, NDArray[np.int64]],
        out: NDArray[Any],
        places: Mapping[int, slice | NDArray[np.int64]],
    ) -> None:
        begun = time.monotonic()
        try:
            with _mapped_errors():
                limit = self._deadline - (self._spent or 0.0)
                # Rows that are stored in fewer bits travel as they are.
                is_rounded = kind == "features" and out.dtype == np.float32
                form = self._wire if is_rounded else ""
                self._client.fetch_rows(kind, node_type, wanted, out, places, limit, form)
        finally:
            if self._spent is not None:
                self._spent += time.monotonic() - begun

    @contextmanager
    def one_operation(self) -> Iterator[None]:
        """See :class:`RemoteSource`."""
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
        """Room for rows as they are stored; ``width`` numbers of each, None = all."""
        if kind == "features":
            stored = stored_features(self._graph.schema.table(node_type), width)
            if stored is None:
                raise GraphError(f"{self._graph.path}: {node_type!r} has no features")
            return np.empty((rows, stored.columns), stored.dtype)
        labels = self._graph.schema.labels.get(node_type)
        if labels is None:
            raise GraphError(f"{self._graph.path}: node type {node_type!r} has no labels")
        return np.empty((rows, labels.columns), labels.dtype)


@contextmanager
def _mapped_errors() -> Iterator[None]:
    """Turn the feature service's errors into Hopper's, texts kept."""
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
