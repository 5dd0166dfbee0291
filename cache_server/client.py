"""The client of all feature servers: rows of every server into one preallocated array."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Final

import grpc
import numpy as np
from grpc.experimental import ChannelOptions
from grpc_health.v1 import health_pb2, health_pb2_grpc
from numpy.typing import NDArray

from cache_server.ask import Operation, Question, begin_all, run_all
from cache_server.errors import BadRequest
from cache_server.fetch import Fetch, Part
from cache_server.generated import features_pb2
from cache_server.retry import Deadline, Patience
from cache_server.sampling import DrawQuestion, NeighbourDraw
from cache_server.shard import TableDescription
from cache_server.wire import DESCRIBE, FETCH_ROWS, IDS_PER_REQUEST, SAMPLE_NEIGHBORS, SERVICE

_CHANNEL_OPTIONS: Final = (
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


@dataclass(frozen=True)
class ServerDescription:
    """What one server says about itself.

    Attributes
    ----------
    server, servers: its index, and how many there are.
    tables: what it holds.
    versions: of what it runs on, by name.
    ids_per_request: the most ids that one request may ask for.
    division: fingerprint of the partitioned directory that it serves a part of; "" if none.
    """

    server: int
    servers: int
    tables: tuple[TableDescription, ...]
    versions: dict[str, str]
    ids_per_request: int
    division: str


class FeatureClient:
    """Asks any number of feature servers at once. Safe to use from several threads.

    Parameters
    ----------
    addresses: "host:port" of every server, in order of server index.
    deadline: seconds that one call of a method may take, all retries included.
    on_transfer: called as (server, bytes sent, bytes received) once for every ``FetchRows``
        request, failed ones included, with the sizes of the serialised messages; never from two
        threads at once.
    ids_per_request: larger fetches are split into requests of at most this many ids.
    division: the fingerprint that every server has to say; "" = any.

    Raises
    ------
    BadRequest: ``deadline`` or ``ids_per_request`` is not positive.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        deadline: float = 30.0,
        on_transfer: Callable[[int, int, int], None] | None = None,
        ids_per_request: int = IDS_PER_REQUEST,
        division: str = "",
    ) -> None:
        if not deadline > 0 or ids_per_request < 1:
            raise BadRequest(
                "expected deadline > 0 and ids_per_request >= 1, "
                f"found {deadline!r} and {ids_per_request!r}"
            )
        self.addresses = tuple(addresses)
        self.deadline = deadline
        self._ids_per_request = ids_per_request
        self._division = division
        self._on_transfer = on_transfer
        self._transfer_lock = threading.Lock()
        self._closed = threading.Event()
        self._channels = [grpc.insecure_channel(a, _CHANNEL_OPTIONS) for a in self.addresses]
        # Without serialisers grpc passes bytes through as they are.
        self._fetch = [channel.unary_stream(FETCH_ROWS) for channel in self._channels]
        self._sample = [channel.unary_stream(SAMPLE_NEIGHBORS) for channel in self._channels]
        self._pool = futures.ThreadPoolExecutor(
            max(4, 2 * len(self.addresses)), thread_name_prefix="feature-client"
        )

    def __enter__(self) -> FeatureClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what still runs and close all connections; may be called again."""
        if not self._closed.is_set():
            self._closed.set()
            for channel in self._channels:
                channel.close()
            self._pool.shutdown()

    def wait_until_serving(self, limit: float) -> None:
        """Return once every server says that it serves, and that it is the one expected.

        Raises
        ------
        ServerUnavailable, DeadlineExceeded: a server does not within ``limit`` seconds.
        BadReply: a server says that it has another index, that there are more or fewer servers, or
            that it serves another division.
        """
        self._check_open()
        deadline, stop = Deadline(limit), threading.Event()
        servers = range(len(self.addresses))
        tasks = [partial(self._await_serving, server, deadline, stop) for server in servers]
        run_all(self._pool, tasks, stop.set)

    def describe(self, server: int) -> ServerDescription:
        """What ``server`` holds.

        Raises
        ------
        CallError: the server cannot be asked, or does not answer within the deadline.
        """
        self._check_open()
        self._check_server(server)
        deadline = Deadline(self.deadline)
        address = self.addresses[server]
        patience = Patience(server, address, "Describe", deadline, threading.Event())
        return self._describe(server, patience)

    def fetch_rows(
        self,
        kind: str,
        type: str,
        ids: Mapping[int, NDArray[np.int64]],
        out: NDArray[Any],
        places: Mapping[int, slice | NDArray[np.int64]],
        limit: float | None = None,
    ) -> None:
        """Fetch rows from all servers in ``ids`` at once, straight into ``out``.

        Parameters
        ----------
        kind, type: which table.
        ids: per server, [n] int64 global ids, any order, repeats allowed; none is ordinary.
        out: [rows, dim], C-contiguous and writable, of the table's dtype; [rows] will do where
            dim is 1. For a CPU tensor pass ``tensor.numpy()``, which shares its memory. After an
            error its content is undefined.
        places: per server, the rows of ``out`` to fill, in the order of ``ids``: a slice, or [n]
            int64. Places of different servers must not overlap.
        limit: seconds, where that is less than the client's deadline: what is left for an operation
            that this fetch is a part of.

        Raises
        ------
        BadRequest: the arguments do not fit each other; nothing was sent.
        InvalidRequest: a server refuses (unknown table, id outside its range, wrong dtype or dim).
        ServerUnavailable, DeadlineExceeded, BadReply, ServerFault: the first server that failed;
            requests to the others are cancelled.
        """
        self._check_open()
        if ids.keys() != places.keys():
            raise BadRequest(f"ids are for servers {sorted(ids)}, places for {sorted(places)}")
        fetch = Fetch(kind, type, out)
        parts = []
        for server, wanted in ids.items():
            self._check_server(server)
            parts.append(Part(server, wanted, fetch, places[server]))
        operation = self._operation(fetch.operation, limit)
        tasks = self._tasks(operation, parts, self._fetch, self._on_transfer)
        run_all(self._pool, tasks, operation.abandon)

    def begin_sampling(
        self,
        draws: Mapping[int, Sequence[NeighbourDraw]],
        on_transfer: Callable[[int, int, int], None] | None = None,
    ) -> Callable[[], None]:
        """Ask all servers in ``draws`` at once to draw neighbours of their nodes.

        Parameters
        ----------
        draws: by server; they have what was drawn once all have answered.
        on_transfer: called as the client's own, for every ``SampleNeighbors`` request.

        Returns
        -------
        What waits until all have answered. Its errors are those of :meth:`fetch_rows`.

        Raises
        ------
        BadRequest: no server can be asked for that; nothing was sent.
        """
        self._check_open()
        questions = []
        for server, own in draws.items():
            self._check_server(server)
            questions.append(DrawQuestion(server, own))
        operation = self._operation("SampleNeighbors", None)
        tasks = self._tasks(operation, questions, self._sample, on_transfer)
        return begin_all(self._pool, tasks, operation.abandon)

    def _operation(self, name: str, limit: float | None) -> Operation:
        return Operation(name, Deadline(self.deadline, limit), self._ids_per_request)

    def _tasks(
        self,
        operation: Operation,
        questions: Sequence[Question],
        stubs: Sequence[Callable[..., Any]],
        told: Callable[[int, int, int], None] | None,
    ) -> list[Callable[[], None]]:
        """What asks each server that is asked for anything."""

        def ask(question: Question) -> None:
            server = question.server
            patience = Patience(
                server, self.addresses[server], operation.name, operation.deadline, operation.stop
            )
            stub = partial(self._invoke, stubs[server])
            operation.ask(question, stub, patience, partial(self._count, told))

        return [partial(ask, question) for question in questions if question.size]

    def _await_serving(self, server: int, deadline: Deadline, stop: threading.Event) -> None:
        address = self.addresses[server]
        patience = Patience(server, address, "wait until serving", deadline, stop)
        stub = health_pb2_grpc.HealthStub(self._channels[server])
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        while True:
            reply = self._attempt(stub.Check, request, patience)
            if reply.status == health_pb2.HealthCheckResponse.SERVING:
                break
            patience.missed("it says that it does not serve")
        found = self._describe(server, patience)
        if (found.server, found.servers) != (server, len(self.addresses)):
            raise patience.bad_reply(
                f"it is server {found.server} of {found.servers}, expected {server} of "
                f"{len(self.addresses)}: addresses go by server index"
            )
        if found.ids_per_request < 1:
            raise patience.bad_reply(
                f"ids_per_request: expected at least 1, found {found.ids_per_request}"
            )
        if self._division and found.division != self._division:
            raise patience.bad_reply(
                f"it serves the division {found.division or 'without a fingerprint'}, expected "
                f"{self._division}: the graph was divided anew, or is another one"
            )
        with self._transfer_lock:
            self._ids_per_request = min(self._ids_per_request, found.ids_per_request)

    def _describe(self, server: int, patience: Patience) -> ServerDescription:
        call = self._channels[server].unary_unary(
            DESCRIBE,
            request_serializer=features_pb2.DescribeRequest.SerializeToString,
            response_deserializer=features_pb2.ServerDescription.FromString,
        )
        reply = self._attempt(call, features_pb2.DescribeRequest(), patience)
        names = [field.name for field in fields(TableDescription)]
        tables = [TableDescription(**{n: getattr(t, n) for n in names}) for t in reply.tables]
        return ServerDescription(
            reply.server,
            reply.servers,
            tuple(tables),
            dict(reply.versions),
            reply.ids_per_request,
            reply.division,
        )

    def _attempt(self, call: Callable[..., Any], request: Any, patience: Patience) -> Any:
        """The reply of a call with one answer, after as many attempts as ``patience`` allows."""
        while True:
            try:
                return self._invoke(call, request, timeout=patience.attempt_seconds())
            except grpc.RpcError as error:
                patience.failed(error)

    def _invoke(self, call: Callable[..., Any], request: Any, timeout: float) -> Any:
        try:
            return call(request, timeout=timeout)
        except ValueError:
            # What grpc raises on a channel that was closed while this call was on its way.
            self._check_open()
            raise

    def _count(
        self,
        told: Callable[[int, int, int], None] | None,
        server: int,
        sent: int,
        received: int,
    ) -> None:
        if told is not None:
            with self._transfer_lock:
                told(server, sent, received)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise BadRequest("the client is closed")

    def _check_server(self, server: int) -> None:
        if not 0 <= server < len(self.addresses):
            raise BadRequest(f"server {server} is outside [0, {len(self.addresses)})")
