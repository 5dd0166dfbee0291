"""The server process: one shard, one grpc server, and a graceful end."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent import futures
from pathlib import Path
from typing import Any, Final

import grpc

from cache_server.events import events
from cache_server.limits import (
    DEFAULT_DRAIN_SECONDS,
    DEFAULT_SEND_SECONDS,
    DEFAULT_THREADS,
    IDS_PER_REQUEST,
)
from cache_server.process import EndingSignals, end_with_parent, keep_freed_memory
from cache_server.security import PLAIN, Security, Token
from cache_server.service.flow import FlowControl, default_memory
from cache_server.service.listen import bind
from cache_server.service.metrics_port import MetricsPort
from cache_server.service.servicer import FeatureServicer
from cache_server.store.row_source import NO_SOURCES, SourceRequest
from cache_server.store.shard import Shard
from cache_server.wire import largest_request

_QUICK_THREADS: Final = 2
_REQUESTS_AT_ONCE: Final = 1024
"""requests that run or wait; more are refused, since a waiting one holds up to 64 KiB"""
_STREAMS_A_CONNECTION: Final = 64


class _TokenGuard(grpc.ServerInterceptor):
    """Refuses requests without the token before they are read, and tells ``on_refusal`` of them."""

    def __init__(self, token: Token, on_refusal: Callable[[str], None]) -> None:
        self._token, self._on_refusal = token, on_refusal

        def refuse(_requests: Any, context: grpc.ServicerContext) -> Any:
            events.note("refused token", "a request without the token", peer=context.peer())
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "expected this cluster's token")

        # As a stream method the handler gets the call before any message is read.
        self._refusal = grpc.stream_stream_rpc_method_handler(refuse)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Return the handler of a call: the usual one, or one that refuses it."""
        if self._token.is_shown_by(handler_call_details.invocation_metadata or ()):
            return continuation(handler_call_details)
        self._on_refusal(handler_call_details.method)
        return self._refusal


class FeatureServer:
    """A grpc server of one shard, with the standard health service.

    Parameters
    ----------
    shard: the tables to serve.
    listen: "host:port"; port 0 takes a free one.
    threads: requests answered at the same time; further ones wait.
    ids_per_request: the most ids that one request may ask for.
    send_seconds: how long a client may leave a chunk of rows unread.
    security: certificates and token of the connections.
    metrics: "host:port" where Prometheus reads metrics; "" = nowhere.
    memory: bytes that running replies may hold; None = 1 GiB, or a quarter of the available
        memory if that is less.

    Raises
    ------
    ListenError: ``listen`` or ``metrics`` is malformed or cannot be bound.
    SecurityError: ``security`` cannot be used, or does not protect ``listen``.
    """

    def __init__(
        self,
        shard: Shard,
        listen: str,
        *,
        threads: int = DEFAULT_THREADS,
        ids_per_request: int = IDS_PER_REQUEST,
        send_seconds: float = DEFAULT_SEND_SECONDS,
        security: Security = PLAIN,
        metrics: str = "",
        memory: int | None = None,
    ) -> None:
        if memory is None:
            memory = default_memory()
        self._flow = FlowControl(threads, send_seconds, memory, largest_request(ids_per_request))
        self._servicer = FeatureServicer(shard, self._flow, ids_per_request)
        counts, token = self._servicer.metrics, security.token()
        self._grpc = grpc.server(
            self._flow.pool,
            options=[
                ("grpc.max_receive_message_length", largest_request(ids_per_request)),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_concurrent_streams", _STREAMS_A_CONNECTION),
                # Otherwise a second server on the same port would silently share its requests.
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=_REQUESTS_AT_ONCE,
            interceptors=[_TokenGuard(token, counts.count_refused_token)] if token else [],
        )
        quick = futures.ThreadPoolExecutor(_QUICK_THREADS, thread_name_prefix="health")
        self._grpc.add_generic_rpc_handlers(self._servicer.handlers(quick))
        self.address = bind(self._grpc, listen, security)
        self.metrics_port: MetricsPort | None = None
        if metrics:
            self.metrics_port = MetricsPort(counts.registry, metrics, security)

    def start(self) -> None:
        """Start to answer requests; health checks succeed from now on."""
        self._flow.start()
        self._grpc.start()
        self._servicer.is_serving = True

    def stop(self, drain_seconds: float) -> bool:
        """Refuse new requests and let running ones finish for at most ``drain_seconds``."""
        self._servicer.is_serving = False
        has_ended = self._grpc.stop(drain_seconds).wait(drain_seconds + 1.0)
        self._flow.stop()
        if self.metrics_port is not None:
            self.metrics_port.stop()
        return has_ended


def serve(
    directory: str | Path,
    server: int,
    listen: str,
    *,
    port_file: str | Path | None = None,
    die_with_parent: int | None = None,
    drain_seconds: float = DEFAULT_DRAIN_SECONDS,
    sources: Mapping[str, SourceRequest] = NO_SOURCES,
    **options: Any,
) -> None:
    """Serve ``directory``/server-<server> until SIGTERM or SIGINT; return after the drain.

    Once the server listens, it prints one line with the bound address and writes ``{"server",
    "address", "pid"}`` as JSON to ``port_file``, with ``"metrics"`` if there is a metrics port.
    Must run in the main thread.
    """
    ending = EndingSignals()
    if die_with_parent is not None:
        end_with_parent(die_with_parent)
    keep_freed_memory()
    shard = Shard.open(Path(directory) / f"server-{server}", sources)
    running = FeatureServer(shard, listen, **options)
    running.start()
    if port_file is not None:
        _write_port_file(Path(port_file), server, running)
    print(f"feature server {server} of {shard.servers} on {running.address}", flush=True)
    ending.wait()
    if not running.stop(drain_seconds):
        events.fail("drain", f"feature server {server}: calls outlasted the drain limit")


def _write_port_file(path: Path, server: int, running: FeatureServer) -> None:
    content = {"server": server, "address": running.address, "pid": os.getpid()}
    if running.metrics_port is not None:
        content["metrics"] = running.metrics_port.address
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content) + "\n")
    temporary.replace(path)
