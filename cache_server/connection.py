"""A client's connection to one feature server."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final

import grpc
from grpc.experimental import ChannelOptions
from grpc_health.v1 import health_pb2_grpc

from cache_server.errors import SecurityError
from cache_server.generated import features_pb2
from cache_server.security import Security, Token, WatchedFiles
from cache_server.wire import DESCRIBE, FETCH_ROWS, SAMPLE_NEIGHBORS

CHECK: Final = "/grpc.health.v1.Health/Check"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Servers are named by the user; a proxy meant for the web must not come between.
    ("grpc.enable_http_proxy", 0),
    # A server that restarts should be found again within a retry or two.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # The reading thread drives its stream itself, without a thread in between.
    (ChannelOptions.SingleThreadedUnaryStream, 1),
)


class Connection:
    """A server's methods, over a channel that is made anew once its certificates have changed.

    Safe to use from several threads. Files that change into what cannot be used are told on stderr,
    and the channel stays.

    Parameters
    ----------
    token: what requests carry; None = nothing.
    """

    def __init__(self, address: str, security: Security, token: Token | None) -> None:
        self._address, self._security, self._token = address, security, token
        self._files = WatchedFiles(security.tls_files)
        self._lock = threading.Lock()
        self._channel, self._methods = self._open()

    def call(self, method: str, request: Any, timeout: float) -> Any:
        """Begin a call of ``method``, of those in :mod:`cache_server.wire` and :data:`CHECK`.

        Requests and replies of :data:`FETCH_ROWS` and :data:`SAMPLE_NEIGHBORS` are bytes.

        Raises
        ------
        ValueError: the connection is closed.
        """
        if self._files.have_changed():
            self._renew()
        metadata = None if self._token is None else self._token.metadata()
        return self._methods[method](request, timeout=timeout, metadata=metadata)

    def close(self) -> None:
        """Cancel the calls that run."""
        with self._lock:
            self._channel.close()

    def _renew(self) -> None:
        with self._lock:
            try:
                # The channel before it goes once its calls have ended.
                self._channel, self._methods = self._open()
            except SecurityError as error:
                print(f"warning: {error}; {self._address} is asked as before", file=sys.stderr)

    def _open(self) -> tuple[Any, dict[str, Callable[..., Any]]]:
        credentials = self._security.channel_credentials()
        if credentials is None:
            channel = grpc.insecure_channel(self._address, _OPTIONS)
        else:
            channel = grpc.secure_channel(self._address, credentials, _OPTIONS)
        return channel, {
            # Without serialisers grpc passes bytes through as they are.
            FETCH_ROWS: channel.unary_stream(FETCH_ROWS),
            SAMPLE_NEIGHBORS: channel.unary_stream(SAMPLE_NEIGHBORS),
            DESCRIBE: channel.unary_unary(
                DESCRIBE,
                request_serializer=features_pb2.DescribeRequest.SerializeToString,
                response_deserializer=features_pb2.ServerDescription.FromString,
            ),
            CHECK: health_pb2_grpc.HealthStub(channel).Check,
        }
