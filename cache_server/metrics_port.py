"""The port of a process where Prometheus reads its metrics, over HTTP or HTTPS.

prometheus_client's own server loads certificates once, and shakes hands with one connection after
the other: one that says nothing would keep all others waiting.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from socketserver import BaseServer, TCPServer, ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from cache_server.errors import ListenError, SecurityError
from cache_server.events import events
from cache_server.listen import check_free, parse_address
from cache_server.security import HEADER, PLAIN, Security, Token, WatchedFiles

_IDLE_SECONDS: Final = 10.0
"""how long a connection may say nothing"""
_CONNECTIONS: Final = 8
"""that are answered at the same time; others are closed"""

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class MetricsPort:
    """Answers every GET with a registry's metrics, from :meth:`start` on.

    Parameters
    ----------
    listen: "host:port"; port 0 takes a free one.
    security: who may ask: with certificates it is HTTPS's port, with a token every request has to
        carry it.
    name: of the setting that ``listen`` is, for errors.

    Attributes
    ----------
    address: "host:port" with the port that was taken.

    Raises
    ------
    ListenError: ``listen`` is malformed or cannot be bound.
    SecurityError: ``security`` cannot be used, or leaves ``listen`` open to others.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        listen: str,
        security: Security = PLAIN,
        name: str = "metrics",
    ) -> None:
        host, port = parse_address(listen, name)
        check_free(host, port, listen, name)
        security.check_server(listen)
        application: Application = make_wsgi_app(registry)
        if security.token_file:
            application = _guard(application, Token(security.token_file))
        try:
            self._server = _Server(host, port, security, application)
        except OSError as error:
            raise ListenError(f"{name}: cannot bind {listen}: {error.strerror}") from error
        self.address = f"{listen.rpartition(':')[0]}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )

    def __enter__(self) -> MetricsPort:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Handler(WSGIRequestHandler):
    timeout = _IDLE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread a connection, in which hands are shaken too."""

    daemon_threads = True
    # Two processes would silently share the port's requests.
    allow_reuse_port = False

    def __init__(self, host: str, port: int, security: Security, application: Application) -> None:
        self._security = security
        self._files = WatchedFiles(security.tls_files)
        self._context = security.server_context()
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        """See :class:`WSGIServer`, which would ask for the host's name."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """See :class:`ThreadingMixIn`; more connections than there may be are closed."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """See :class:`ThreadingMixIn`."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """See :class:`BaseServer`."""
        context = self._current_context()
        if context is None:
            BaseServer.finish_request(self, request, client_address)
            return
        request.settimeout(_IDLE_SECONDS)
        with context.wrap_socket(request, server_side=True) as secured:
            BaseServer.finish_request(self, secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of those who break off, or who are no HTTP clients."""

    def _current_context(self) -> ssl.SSLContext | None:
        if self._files.have_changed():
            try:
                self._context = self._security.server_context()
            except SecurityError as error:
                events.warn("certificates", f"{error}; certificates stay as they were")
        return self._context


def _guard(application: Application, token: Token) -> Application:
    """An application that answers only requests that carry the token."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        shown = environ.get("HTTP_AUTHORIZATION")
        if token.is_shown_by([] if shown is None else [(HEADER, shown)]):
            return application(environ, start_response)
        start_response(
            "401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Length", "0")]
        )
        return [b""]

    return answer
