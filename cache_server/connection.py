"""A client's connections to one feature server, and to all servers of one partition."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from grpc.experimental import ChannelOptions

from cache_server.errors import SecurityError
from cache_server.events import events
from cache_server.generated import features_pb2
from cache_server.security import Security, Token, WatchedFiles
from cache_server.wire import CHECK, DESCRIBE, FETCH_ROWS, PART_HEADER, SAMPLE_NEIGHBORS

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # The user names the servers, so a proxy that is configured for the web must not be used.
    ("grpc.enable_http_proxy", 0),
    # A restarted server must be reachable again within a retry or two.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # gRPC gives up connecting after this time, and TLS over a slow link or a busy machine needs it.
    ("grpc.min_reconnect_backoff_ms", 2000),
    # The thread that reads a stream also drives it, which saves a thread per call.
    (ChannelOptions.SingleThreadedUnaryStream, 1),
)


class Connection:
    """The methods of one server, over a channel that is reopened when certificates have changed.

    Safe to use from several threads. If changed files cannot be used, a warning is written to
    stderr and the old channel is kept.

    Parameters
    ----------
    token: the token that requests carry; None = none.
    part: name of the server that is expected at the address, made by :func:`name_part`; "" = any.
    """

    def __init__(
        self, address: str, security: Security, token: Token | None, part: str = ""
    ) -> None:
        self._address, self._security, self._token = address, security, token
        self._part = ((PART_HEADER, part),) if part else ()
        self._files = WatchedFiles(security.tls_files)
        self._lock = threading.Lock()
        self._channel, self._methods = self._open()

    def call(self, method: str, request: Any, timeout: float) -> Any:
        """Start a call of ``method``, one of the names in :mod:`cache_server.wire`.

        Requests and replies of :data:`FETCH_ROWS` and :data:`SAMPLE_NEIGHBORS` are bytes.

        Raises
        ------
        ValueError: the connection is closed.
        """
        if self._files.have_changed():
            self._renew()
        metadata = self._part if self._token is None else (*self._part, *self._token.metadata())
        return self._methods[method](request, timeout=timeout, metadata=metadata)

    def close(self) -> None:
        """Close the channel and cancel its running calls."""
        with self._lock:
            self._channel.close()

    def _renew(self) -> None:
        with self._lock:
            try:
                self._security.check_certificates()
                # The old channel closes by itself once its calls have ended.
                self._channel, self._methods = self._open()
            except SecurityError as error:
                text = f"{error}; {self._address} is asked as before"
                events.warn("certificates", text, address=self._address)

    def _open(self) -> tuple[Any, dict[str, Callable[..., Any]]]:
        credentials = self._security.channel_credentials()
        if credentials is None:
            channel = grpc.insecure_channel(self._address, _OPTIONS)
        else:
            channel = grpc.secure_channel(self._address, credentials, _OPTIONS)
        return channel, {
            # Without serialisers grpc passes bytes through unchanged.
            FETCH_ROWS: channel.unary_stream(FETCH_ROWS),
            SAMPLE_NEIGHBORS: channel.unary_stream(SAMPLE_NEIGHBORS),
            DESCRIBE: channel.unary_unary(
                DESCRIBE,
                request_serializer=features_pb2.DescribeRequest.SerializeToString,
                response_deserializer=features_pb2.ServerDescription.FromString,
            ),
            CHECK: channel.unary_unary(
                CHECK,
                request_serializer=features_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=features_pb2.HealthCheckResponse.FromString,
            ),
        }


class Replicas:
    """The feature servers of one partition, of which one is asked at a time.

    Each client begins with a random one and moves on to the next after a failure. Safe to use from
    several threads.

    Parameters
    ----------
    connections: one to each server; at least one.

    Attributes
    ----------
    current: the connection to the server that is asked now.
    """

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._connections = tuple(connections)
        # The choice of the first server need not be unpredictable.
        self.current = random.choice(self._connections)  # noqa: S311
        self._known = set[Connection]()

    @property
    def are_several(self) -> bool:
        """Return whether there is another server to ask."""
        return len(self._connections) > 1

    def is_known(self, connection: Connection) -> bool:
        """Return whether a server was checked, or needs no check as the only one."""
        return not self.are_several or connection in self._known

    def know(self, connection: Connection) -> None:
        """Remember that a server is the expected one."""
        self._known.add(connection)

    def leave(self, failed: Connection) -> None:
        """Move on to the next server, unless another call that failed has done so already."""
        if self.current is failed:
            after = self._connections.index(failed) + 1
            self.current = self._connections[after % len(self._connections)]

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()
