"""A feature server's metrics for Prometheus, which are updated once a request."""

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

from cache_server.service.flow import FlowControl, Reply
from cache_server.wire import METHODS

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class ServerMetrics:
    """One server's metrics, in a registry of their own."""

    def __init__(self, server: int, servers: int, flow: FlowControl) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        common: Any = {"namespace": "hopper", "subsystem": "server", "registry": registry}
        Info("hopper_server", "which server this is", registry=registry).info(
            {"server": str(server), "servers": str(servers)}
        )
        self._requests = Counter(
            "requests", "requests that have ended", ["method", "status"], **common
        )
        self._seconds = Histogram(
            "request_seconds",
            "seconds from a request's first moment in a thread to the end of its reply",
            ["method"],
            buckets=_SECONDS,
            **common,
        )
        self._rows = Counter("rows_sent", "rows of features and labels", **common)
        self._neighbours = Counter("neighbours_drawn", "neighbours that were drawn", **common)
        self._bytes = Counter("bytes_sent", "bytes of serialised replies", ["method"], **common)
        self._refused_tokens = Counter(
            "refused_tokens", "requests that did not carry the token", **common
        )
        for name, text, read_value in (
            ("requests_in_flight", "requests that are answered now", lambda: flow.running),
            ("requests_waiting", "requests that wait for a thread", lambda: flow.waiting),
            ("memory_in_flight_bytes", "held by replies", lambda: flow.nbytes),
            ("memory_in_flight_limit_bytes", "that may be held", lambda: flow.limit),
        ):
            Gauge(name, text, **common).set_function(read_value)
        slow = Counter("slow_readers", "replies given up since clients let them wait", **common)
        flow.on_given_up = lambda _reply: slow.inc()

    def count_request(self, path: str, status: grpc.StatusCode) -> None:
        """Count a request, by its method's full name, that has ended."""
        self._requests.labels(_label(path), status.name).inc()

    def count_reply(self, path: str, status: grpc.StatusCode, reply: Reply) -> None:
        """Count a request for a stream that has ended, and what its reply sent."""
        self.count_request(path, status)
        self._seconds.labels(_label(path)).observe(time.monotonic() - reply.began)
        if reply.nbytes:
            self._bytes.labels(_label(path)).inc(reply.nbytes)
            self._rows.inc(reply.rows)
            self._neighbours.inc(reply.neighbours)

    def count_refused_token(self, path: str) -> None:
        """Count a request that lacked the token."""
        self._refused_tokens.inc()
        self.count_request(path, grpc.StatusCode.UNAUTHENTICATED)


def _label(path: str) -> str:
    """Return a method's name; one for all unknown ones, so that clients cannot create labels."""
    return path.rpartition("/")[2] if path in METHODS else "other"
