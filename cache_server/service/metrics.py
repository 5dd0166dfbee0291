"""A feature server's metrics, updated once a request, and the port where Prometheus reads them."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    make_wsgi_app,
    start_http_server,
)

from cache_server.errors import ListenError
from cache_server.security import HEADER, PLAIN, Security
from cache_server.service.flow import FlowControl, Reply
from cache_server.wire import METHODS

_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_IDLE_SECONDS: Final = 10.0
"""how long a connection of Prometheus may be silent"""


class ServerMetrics:
    """One server's metrics, in a registry of their own."""

    def __init__(self, server: int, servers: int, flow: FlowControl) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        common: Any = {"namespace": "hopper", "subsystem": "server", "registry": registry}
        Info("hopper_server", "which server this is", registry=registry).info(
            {"server": str(server), "servers": str(servers)}
        )
        counters = (
            ("requests", "requests that have ended", "method", "status"),
            ("bytes_sent", "bytes of serialised replies", "method"),
            ("rows_sent", "rows of features and labels"),
            ("neighbours_drawn", "neighbours that were drawn"),
            ("refused_tokens", "requests that did not carry the token"),
            ("slow_readers", "replies given up since clients let them wait"),
        )
        self._counters = {
            name: Counter(name, text, labels, **common) for name, text, *labels in counters
        }
        text = "seconds from a request's first moment in a thread to the end of its reply"
        self._seconds = Histogram("request_seconds", text, ["method"], buckets=_SECONDS, **common)
        for name, text, read_value in (
            ("requests_in_flight", "requests that are answered now", lambda: flow.running),
            ("requests_waiting", "requests that wait for a thread", lambda: flow.waiting),
            ("memory_in_flight_bytes", "held by replies", lambda: flow.nbytes),
            ("memory_in_flight_limit_bytes", "that may be held", lambda: flow.limit),
        ):
            Gauge(name, text, **common).set_function(read_value)
        flow.on_given_up = self._counters["slow_readers"].inc

    def count_request(self, path: str, status: grpc.StatusCode) -> None:
        """Count a request, by its method's full name, that has ended."""
        self._counters["requests"].labels(_label(path), status.name).inc()

    def count_reply(self, path: str, status: grpc.StatusCode, reply: Reply) -> None:
        """Count a request for a stream that has ended, and what its reply sent."""
        self.count_request(path, status)
        self._seconds.labels(_label(path)).observe(time.monotonic() - reply.began)
        if reply.nbytes:
            self._counters["bytes_sent"].labels(_label(path)).inc(reply.nbytes)
            self._counters["rows_sent"].inc(reply.rows)
            self._counters["neighbours_drawn"].inc(reply.neighbours)

    def count_refused_token(self, path: str) -> None:
        """Count a request that lacked the token."""
        self._counters["refused_tokens"].inc()
        self.count_request(path, grpc.StatusCode.UNAUTHENTICATED)


def _label(path: str) -> str:
    """Return a method's name; one for all unknown ones, so that clients cannot create labels."""
    return path.rpartition("/")[2] if path in METHODS else "other"


class MetricsPort:
    """prometheus_client's HTTP server of a registry's metrics, which may ask for a token."""

    def __init__(
        self,
        registry: CollectorRegistry,
        listen: str,
        security: Security = PLAIN,
        name: str = "metrics",
    ) -> None:
        host, port = security.check_server(listen, name)
        token, application = security.token(), make_wsgi_app(registry)

        def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
            shown = [(HEADER, environ.get("HTTP_AUTHORIZATION", ""))]
            if token is None or token.is_shown_by(shown):
                metrics: Iterable[bytes] = application(environ, start)
                return metrics
            start("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Length", "0")])
            return [b""]

        try:
            # It has nothing to tell before the token guards it.
            self._server, self._thread = start_http_server(
                port,
                host,
                CollectorRegistry(),
                certfile=security.tls_certificate or None,
                keyfile=security.tls_key or None,
                client_cafile=security.tls_ca or None,
                client_auth_required=bool(security.tls_ca),
            )
        except OSError as error:
            raise ListenError(f"{name}: cannot bind {listen}: {error.strerror}") from error
        if isinstance(self._server.socket, ssl.SSLSocket):
            # Each connection's own thread makes the handshake, so that a silent one blocks nobody.
            setattr(self._server.socket, "do_handshake_on_connect", False)  # noqa: B010
        handler: Any = self._server.RequestHandlerClass
        self._server.RequestHandlerClass = type("_Handler", (handler,), {"timeout": _IDLE_SECONDS})
        # Connections that break off or do not speak HTTP are not logged.
        setattr(self._server, "handle_error", lambda *_: None)  # noqa: B010
        self._server.set_app(answer)
        self.address = f"{listen.rpartition(':')[0]}:{self._server.server_port}"

    def stop(self) -> None:
        """Stop answering and close the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
