"""The port where Prometheus reads the metrics of a process, over HTTP or HTTPS.

The server of prometheus_client loads certificates only once, and makes TLS handshakes one after the
other, so that a silent connection would block all others. This one does neither.
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
"""how long a connection may be silent"""
_CONNECTIONS: Final = 8
"""connections that are answered at the same time; others are closed"""

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class MetricsPort:
    """An HTTP server that answers every GET with a registry's metrics, once it is started.

    Parameters
    ----------
    listen: "host:port"; port 0 takes a free one.
    security: with certificates the port speaks HTTPS; with a token every request must carry it.
    name: name of the setting that ``listen`` comes from, for errors.

    Attributes
    ----------
    address: "host:port" with the port that was bound.

    Raises
    ------
    ListenError: ``listen`` is malformed or cannot be bound.
    SecurityError: ``security`` cannot be used, or does not protect ``listen``.
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
        """Start to answer requests, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering and close the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Handler(WSGIRequestHandler):
    timeout = _IDLE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    """An HTTP server with a thread for each connection, which also makes the TLS handshake."""

    daemon_threads = True
    # Otherwise two processes could silently share the port's requests.
    allow_reuse_port = False

    def __init__(self, host: str, port: int, security: Security, application: Application) -> None:
        self._security = security
        self._files = WatchedFiles(security.tls_files)
        self._context = security.server_context()
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = addresses[0]
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(application)

    def server_bind(self) -> None:
        """Bind the port as :class:`WSGIServer` does, but without looking the host's name up."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection in a thread, or close it if too many are open."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection in this thread, then count it as closed."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Make the TLS handshake, if there is one, and answer the connection."""
        context = self._current_context()
        if context is None:
            BaseServer.finish_request(self, request, client_address)
            return
        request.settimeout(_IDLE_SECONDS)
        with context.wrap_socket(request, server_side=True) as secured:
            BaseServer.finish_request(self, secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing about connections that break off or do not speak HTTP."""

    def _current_context(self) -> ssl.SSLContext | None:
        if self._files.have_changed():
            try:
                self._context = self._security.server_context()
            except SecurityError as error:
                events.warn("certificates", f"{error}; certificates stay as they were")
        return self._context


def _guard(application: Application, token: Token) -> Application:
    """Wrap an application so that requests without the token get status 401."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request with the metrics, or with status 401."""
        shown = environ.get("HTTP_AUTHORIZATION")
        if token.is_shown_by([] if shown is None else [(HEADER, shown)]):
            return application(environ, start_response)
        start_response(
            "401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Length", "0")]
        )
        return [b""]

    return answer
