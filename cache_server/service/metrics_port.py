"""The port where Prometheus reads the metrics of a process, over HTTP or HTTPS."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from typing import Any, Final

from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

from cache_server.errors import ListenError
from cache_server.security import HEADER, PLAIN, Security, Token
from cache_server.service.listen import check_free, parse_address

_IDLE_SECONDS: Final = 10.0
"""how long a connection may be silent"""

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class MetricsPort:
    """prometheus_client's HTTP server of a registry's metrics, which may ask for a token."""

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
        token = security.token()
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
        application: Application = make_wsgi_app(registry)
        self._server.set_app(application if token is None else _guard(application, token))
        self.address = f"{listen.rpartition(':')[0]}:{self._server.server_port}"

    def __enter__(self) -> MetricsPort:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop answering and close the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _guard(application: Application, token: Token) -> Application:
    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request with the metrics, or with status 401 if it lacks the token."""
        if token.is_shown_by([(HEADER, environ.get("HTTP_AUTHORIZATION", ""))]):
            return application(environ, start_response)
        headers = [("WWW-Authenticate", "Bearer"), ("Content-Length", "0")]
        start_response("401 Unauthorized", headers)
        return [b""]

    return answer
