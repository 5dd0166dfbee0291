"""The server process: one shard, one grpc server, and a graceful end."""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent import futures
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from cache_server.allocation import keep_freed_memory
from cache_server.errors import ListenError
from cache_server.parent import end_with_parent
from cache_server.servicer import FeatureServicer
from cache_server.shard import Shard
from cache_server.wire import ID_BYTES, IDS_PER_REQUEST, SERVICE

DEFAULT_THREADS: Final = 16
DEFAULT_DRAIN_SECONDS: Final = 10.0
_ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT})
"""the signals that end a server"""


class FeatureServer:
    """A shard's grpc server with the health service beside it.

    Parameters
    ----------
    shard: what is served.
    listen: "host:port"; port 0 takes a free one.
    threads: requests answered at the same time; more wait their turn.
    ids_per_request: the most ids that one request may ask for.

    Raises
    ------
    ListenError: ``listen`` is malformed or cannot be bound.
    """

    def __init__(
        self,
        shard: Shard,
        listen: str,
        *,
        threads: int = DEFAULT_THREADS,
        ids_per_request: int = IDS_PER_REQUEST,
    ) -> None:
        host, separator, port = listen.rpartition(":")
        if not separator or not host or not port.isdecimal() or int(port) > 65535:
            raise ListenError(f"listen: expected HOST:PORT, found {listen!r}")
        self._grpc = grpc.server(
            futures.ThreadPoolExecutor(threads, thread_name_prefix="feature"),
            options=_server_options(ids_per_request),
        )
        self._grpc.add_generic_rpc_handlers((FeatureServicer(shard, ids_per_request).handler(),))
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        try:
            bound = self._grpc.add_insecure_port(listen)
        except RuntimeError as error:
            raise ListenError(f"listen: cannot bind {listen}: {error}") from error
        self.address = f"{host}:{bound}"

    def start(self) -> None:
        """Answer requests from now on, and say so to health checks."""
        self._grpc.start()
        for service in ("", SERVICE):
            self._health.set(service, health_pb2.HealthCheckResponse.SERVING)

    def stop(self, drain_seconds: float) -> bool:
        """Refuse new requests, finish those that run, cancel what outlasts ``drain_seconds``.

        Returns
        -------
        Whether everything had ended a second after the drain limit.
        """
        self._health.enter_graceful_shutdown()
        return self._grpc.stop(drain_seconds).wait(drain_seconds + 1.0)


def serve(
    directory: str | Path,
    server: int,
    listen: str,
    *,
    port_file: str | Path | None = None,
    die_with_parent: int | None = None,
    threads: int = DEFAULT_THREADS,
    drain_seconds: float = DEFAULT_DRAIN_SECONDS,
    ids_per_request: int = IDS_PER_REQUEST,
) -> None:
    """Serve ``directory``/server-<server> until SIGTERM or SIGINT; returns after the drain.

    Once it listens, one line with the bound address goes to stdout, and
    ``{"server", "address", "pid"}`` as JSON to ``port_file``. Must run in the main thread.

    Raises
    ------
    ManifestError, ListenError: nothing is served.
    """
    # Waited for and not handled: a handler that runs inside a lock of what it calls would hang.
    # Blocked before any thread starts, so that none of them gets the signal instead.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    if die_with_parent is not None:
        end_with_parent(die_with_parent)
    keep_freed_memory()
    shard = Shard.open(Path(directory) / f"server-{server}")
    running = FeatureServer(shard, listen, threads=threads, ids_per_request=ids_per_request)
    running.start()
    if port_file is not None:
        _write_port_file(Path(port_file), server, running.address)
    print(f"feature server {server} of {shard.servers} on {running.address}", flush=True)
    signal.sigwait(_ENDING)
    if not running.stop(drain_seconds):
        print(f"feature server {server}: calls outlasted the drain limit", file=sys.stderr)


def _server_options(ids_per_request: int) -> list[tuple[str, int]]:
    return [
        # Room for a request above the ids limit, so that the refusal can name it.
        ("grpc.max_receive_message_length", 4 * ID_BYTES * ids_per_request + (1 << 20)),
        ("grpc.max_send_message_length", -1),
        # Otherwise a second server on the same port would silently share its requests.
        ("grpc.so_reuseport", 0),
    ]


def _write_port_file(path: Path, server: int, address: str) -> None:
    content = {"server": server, "address": address, "pid": os.getpid()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(content) + "\n")
    temporary.replace(path)
