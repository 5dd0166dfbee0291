"""The server process: one shard, one grpc server, and a graceful end."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import grpc

from cache_server.errors import ListenError
from cache_server.events import events
from cache_server.limits import DEFAULT_SEND_SECONDS, DEFAULT_THREADS, IDS_PER_REQUEST
from cache_server.process import EndingSignals, end_with_parent, keep_freed_memory
from cache_server.security import PLAIN, Security
from cache_server.service.flow import FlowControl, default_memory
from cache_server.service.metrics import MetricsPort
from cache_server.service.servicer import FeatureServicer
from cache_server.store.row_source import SourceRequest
from cache_server.store.shard import Shard
from cache_server.wire import ID_BYTES

_ARENAS: Final = 2
"""of the C library's memory: after 40,000 malformed requests a server with the default of eight a
core kept 204 MiB, one with two 164, and answered as fast"""
_REQUESTS_AT_ONCE: Final = 1024
"""requests that run or wait; more are refused, since a waiting one holds up to 64 KiB"""


class FeatureServer:
    """A grpc server of one shard, with the standard health service.

    Of the parameters, ``threads`` are requests answered at the same time; ``send_seconds`` is how
    long a client may leave a chunk of rows unread; ``metrics`` is the "host:port" where Prometheus
    reads metrics; ``memory`` are the bytes that replies may hold, None = :func:`default_memory`.

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
        # Four arrays of ids, and room for a refusal's count.
        largest = 4 * ID_BYTES * ids_per_request + (1 << 20)
        memory = default_memory() if memory is None else memory
        self._flow = FlowControl(threads, memory, send_seconds, largest)
        self._servicer = FeatureServicer(shard, self._flow, ids_per_request, security.token())
        self._grpc = grpc.server(
            self._flow.pool,
            options=[
                ("grpc.max_receive_message_length", largest),
                ("grpc.max_send_message_length", -1),
                # Otherwise a second server on the same port would silently share its requests.
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=_REQUESTS_AT_ONCE,
        )
        self._grpc.add_generic_rpc_handlers((self._servicer,))
        self.address = f"{listen.rpartition(':')[0]}:{self._bind(listen, security)}"
        self.metrics_port: MetricsPort | None = None
        if metrics:
            registry = self._servicer.metrics.registry
            self.metrics_port = MetricsPort(registry, metrics, security)

    def _bind(self, listen: str, security: Security) -> int:
        security.check_server(listen)
        security.warn_of_open_secrets()
        credentials = security.server_credentials()
        try:
            if credentials is None:
                return int(self._grpc.add_insecure_port(listen))
            return int(self._grpc.add_secure_port(listen, credentials))
        except RuntimeError as error:
            raise ListenError(f"listen: cannot bind {listen}: {error}") from error

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
    options: argparse.Namespace, security: Security, sources: Mapping[str, SourceRequest]
) -> None:
    """Serve with the command's options until SIGTERM or SIGINT; return after the drain.

    Once the server listens, it prints one line with the bound address and writes ``{"server",
    "address", "pid"}`` as JSON to the port file, with ``"metrics"`` if there is a metrics port.
    Must run in the main thread.
    """
    ending = EndingSignals()
    if options.die_with_parent is not None:
        end_with_parent(options.die_with_parent)
    keep_freed_memory(_ARENAS)
    shard = Shard.open(options.partitioned / f"server-{options.server}", sources)
    running = FeatureServer(
        shard,
        options.listen,
        threads=options.threads,
        ids_per_request=options.ids_per_request,
        send_seconds=options.send_timeout,
        security=security,
        metrics=options.metrics,
        memory=options.memory_in_flight,
    )
    running.start()
    if options.port_file is not None:
        content = {"server": options.server, "address": running.address, "pid": os.getpid()}
        if running.metrics_port is not None:
            content["metrics"] = running.metrics_port.address
        temporary = Path(f"{options.port_file}.{os.getpid()}")
        temporary.write_text(json.dumps(content) + "\n")
        temporary.replace(options.port_file)
    name = f"feature server {options.server}"
    print(f"{name} of {shard.servers} on {running.address}", flush=True)
    ending.wait()
    if not running.stop(options.drain):
        events.fail("drain", f"{name}: calls outlasted the drain limit")
