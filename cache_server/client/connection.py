"""A client's connections to one feature server, and to all servers of one partition."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from grpc.experimental import ChannelOptions

from cache_server.errors import BadRequest
from cache_server.generated import features_pb2
from cache_server.security import Security
from cache_server.wire import CHECK, DESCRIBE, DESCRIBE_GRAPH, PART_HEADER, STREAMS

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
_SINGLE_REPLIES: Final = {
    DESCRIBE: features_pb2.ServerDescription,
    DESCRIBE_GRAPH: features_pb2.GraphDescription,
    CHECK: features_pb2.HealthCheckResponse,
}


class Connection:
    """The methods of one server. Safe to use from several threads."""

    def __init__(self, address: str, security: Security, part: str = "") -> None:
        token, credentials = security.token(), security.channel_credentials()
        self._metadata: tuple[tuple[str, str], ...] = ((PART_HEADER, part),) if part else ()
        if token is not None:
            self._metadata += token.metadata()
        if credentials is None:
            self._channel = grpc.insecure_channel(address, _OPTIONS)
        else:
            self._channel = grpc.secure_channel(address, credentials, _OPTIONS)
        # Without serialisers grpc passes bytes through unchanged.
        self._methods: dict[str, Callable[..., Any]] = {
            method: self._channel.unary_stream(method) for method in STREAMS
        }
        for method, reply in _SINGLE_REPLIES.items():
            self._methods[method] = self._channel.unary_unary(
                method, response_deserializer=reply.FromString
            )

    def call(self, method: str, request: bytes, timeout: float) -> Any:
        """Call a method with a serialised request: a reply, or a call to iterate over."""
        try:
            return self._methods[method](request, timeout=timeout, metadata=self._metadata)
        except ValueError as error:
            # grpc raises this for a channel that is closed.
            raise BadRequest("the client is closed") from error

    def close(self) -> None:
        """Close the channel and cancel its running calls."""
        self._channel.close()


class Replicas:
    """The feature servers of one partition, of which one is asked at a time.

    Each client begins with a random one and moves on to the next after a failure. Safe to use from
    several threads.
    """

    def __init__(self, connections: Sequence[Connection]) -> None:
        self.connections = tuple(connections)
        # The choice of the first server need not be unpredictable.
        self.current = random.choice(self.connections)  # noqa: S311

    @property
    def are_several(self) -> bool:
        """Return whether there is another server to ask."""
        return len(self.connections) > 1

    def fail_over(self, failed: Connection) -> None:
        """Move on to the next server, unless another call that failed has done so already."""
        if self.current is failed:
            after = self.connections.index(failed) + 1
            self.current = self.connections[after % len(self.connections)]
