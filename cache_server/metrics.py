"""What a feature server counts for Prometheus: once a request, and never a row at a time."""

from __future__ import annotations

import time
from typing import Any, Final

import grpc
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
)

from cache_server.flow import FlowControl, Stream
from cache_server.wire import CHECK, DESCRIBE, FETCH_ROWS, SAMPLE_NEIGHBORS

_METHODS: Final = {
    each: each.rpartition("/")[2] for each in (FETCH_ROWS, SAMPLE_NEIGHBORS, DESCRIBE, CHECK)
}
_OTHER: Final = "other"
"""the label of methods that there are not: what strangers ask for makes no labels"""
_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class ServerMetrics:
    """One server's metrics, in a registry of their own.

    Parameters
    ----------
    server, servers: index of the server, and how many there are.
    flow: whose replies are counted.

    Attributes
    ----------
    registry: what a scrape reads, with those of the process.
    """

    def __init__(self, server: int, servers: int, flow: FlowControl) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        named: Any = {"namespace": "hopper", "subsystem": "server", "registry": registry}
        Info("hopper_server", "which server this is", registry=registry).info(
            {"server": str(server), "servers": str(servers)}
        )
        self._requests = Counter(
            "requests", "requests that have ended", ["method", "status"], **named
        )
        self._seconds = Histogram(
            "request_seconds",
            "seconds from a request's first moment in a thread to the end of its reply",
            ["method"],
            buckets=_SECONDS,
            **named,
        )
        self._rows = Counter("rows_sent", "rows of features and labels", **named)
        self._neighbours = Counter("neighbours_drawn", "neighbours that were drawn", **named)
        self._bytes = Counter("bytes_sent", "bytes of serialised replies", ["method"], **named)
        self._refused_tokens = Counter(
            "refused_tokens", "requests that did not carry the token", **named
        )
        Gauge(
            "requests_in_flight", "requests for rows or neighbours that are answered now", **named
        ).set_function(lambda: flow.under_way)
        for name, told, read in (
            ("requests_waiting", "requests that wait for a thread", lambda: flow.memory.waiting),
            ("memory_in_flight_bytes", "held by replies and requests", lambda: flow.memory.nbytes),
            ("memory_in_flight_limit_bytes", "that may be held", lambda: flow.memory.limit),
        ):
            Gauge(name, told, **named).set_function(read)
        slow = Counter("slow_readers", "replies given up since nobody read them", **named)
        flow.on_given_up = lambda _stream: slow.inc()
        # Looking a child up by its labels takes longer than counting.
        self._known: dict[tuple[str, grpc.StatusCode], Counter] = {}
        self._of_method = {
            method: (self._seconds.labels(method), self._bytes.labels(method))
            for method in ("FetchRows", "SampleNeighbors")
        }

    def ended(self, method: str, status: grpc.StatusCode) -> None:
        """Count a request.

        Parameters
        ----------
        method: its last word.
        """
        known = self._known.get((method, status))
        if known is None:
            known = self._known[method, status] = self._requests.labels(method, status.name)
        known.inc()

    def replied(self, method: str, status: grpc.StatusCode, stream: Stream) -> None:
        """Count a request for rows or neighbours, and what was sent.

        Parameters
        ----------
        method: its last word.
        """
        self.ended(method, status)
        seconds, nbytes = self._of_method[method]
        seconds.observe(time.monotonic() - stream.began)
        if stream.nbytes:
            nbytes.inc(stream.nbytes)
            self._rows.inc(stream.rows)
            self._neighbours.inc(stream.neighbours)

    def refused_waiting(self, path: str) -> None:
        """Count a request that was not let in to wait."""
        self.ended(_METHODS[path], grpc.StatusCode.RESOURCE_EXHAUSTED)

    def refused_token(self, path: str) -> None:
        """Count a request without the token.

        Parameters
        ----------
        path: of its method, whatever a stranger calls it.
        """
        self._refused_tokens.inc()
        self.ended(_METHODS.get(path, _OTHER), grpc.StatusCode.UNAUTHENTICATED)
