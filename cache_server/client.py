"""The client of all feature servers, which reads their rows into one preallocated array."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from cache_server.ask import Operation, Question, begin_all, run_all
from cache_server.connection import Connection, Replicas
from cache_server.defaults import IDS_PER_REQUEST
from cache_server.errors import BadRequest
from cache_server.fetch import Fetch, Part
from cache_server.generated import features_pb2
from cache_server.retry import Deadline, Patience
from cache_server.sampling import DrawQuestion, RemoteDraw
from cache_server.security import PLAIN, Security, Token
from cache_server.table import TableDescription
from cache_server.wire import (
    CHECK,
    DESCRIBE,
    FETCH_ROWS,
    SAMPLE_NEIGHBORS,
    SERVICE,
    name_part,
)


@dataclass(frozen=True)
class ServerDescription:
    """The description that one server gives of itself.

    Attributes
    ----------
    server, servers: its index, and the number of servers.
    tables: the tables that it serves.
    versions: versions of its software, by name.
    ids_per_request: the most ids that one request may ask for.
    division: fingerprint of the partitioned directory that it serves a part of; "" = none.
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
    addresses: "host:port" of every server, in order of server index. "host:port,host:port" names
        several servers of the same rows; if one fails, the next one is asked.
    deadline: seconds that one call of a method may take, all retries included.
    on_transfer: called as (server, bytes sent, bytes received) once for every ``FetchRows``
        request, failed ones included. Sizes are those of serialised messages. It is never called
        from two threads at once.
    ids_per_request: larger fetches are split into requests of at most this many ids.
    division: the fingerprint that every server must have; "" = any. Requests for rows and
        neighbours carry it, since another server may have taken over an address.
    security: certificates and token of the connections.

    Raises
    ------
    BadRequest: ``deadline`` or ``ids_per_request`` is not positive.
    SecurityError: ``security`` cannot be used, or does not protect one of the addresses.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        deadline: float = 30.0,
        on_transfer: Callable[[int, int, int], None] | None = None,
        ids_per_request: int = IDS_PER_REQUEST,
        division: str = "",
        security: Security = PLAIN,
    ) -> None:
        if not deadline > 0 or ids_per_request < 1:
            raise BadRequest(
                "expected deadline > 0 and ids_per_request >= 1, "
                f"found {deadline!r} and {ids_per_request!r}"
            )
        security.check_client(addresses)
        security.warn_of_open_secrets()
        self.addresses = tuple(addresses)
        self.deadline = deadline
        self._ids_per_request = ids_per_request
        self._division = division
        self._on_transfer = on_transfer
        self._transfer_lock = threading.Lock()
        self._closed = threading.Event()
        token = Token(security.token_file) if security.token_file else None
        parts = [
            name_part(server, division) if division else "" for server in range(len(addresses))
        ]
        self._connections = [
            Replicas([Connection(address, security, token, part) for address in group.split(",")])
            for group, part in zip(self.addresses, parts, strict=True)
        ]
        self._pool = futures.ThreadPoolExecutor(
            max(4, 2 * len(self.addresses)), thread_name_prefix="feature-client"
        )

    def __enter__(self) -> FeatureClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel running calls and close all connections. A second call does nothing."""
        if not self._closed.is_set():
            self._closed.set()
            for connection in self._connections:
                connection.close()
            self._pool.shutdown()

    def wait_until_serving(self, limit: float) -> None:
        """Wait until every server is ready, and check that each is the expected one.

        Raises
        ------
        ServerUnavailable, DeadlineExceeded: a server was not ready within ``limit`` seconds.
        BadReply: a server has another index, number of servers or division than expected.
        """
        self._check_open()
        deadline, stop = Deadline(limit), threading.Event()
        servers = range(len(self.addresses))
        tasks = [partial(self._await_serving, server, deadline, stop) for server in servers]
        run_all(self._pool, tasks, stop.set)

    def describe(self, server: int) -> ServerDescription:
        """Return what ``server`` holds.

        Raises
        ------
        CallError: the server cannot be asked, or does not answer within the deadline.
        """
        self._check_open()
        self._check_server(server)
        deadline = Deadline(self.deadline)
        patience = self._patience(server, "Describe", deadline, threading.Event())
        return self._describe(patience)

    def is_serving(self, server: int) -> bool:
        """Return whether the health check of ``server`` succeeds; raise as :meth:`describe`."""
        self._check_open()
        self._check_server(server)
        patience = self._patience(server, "Check", Deadline(self.deadline), threading.Event())
        return self._says_serving(patience)

    def fetch_rows(
        self,
        kind: str,
        type: str,
        ids: Mapping[int, NDArray[np.int64]],
        out: NDArray[Any],
        places: Mapping[int, slice | NDArray[np.int64]],
        limit: float | None = None,
        form: str = "",
    ) -> None:
        """Fetch rows from all servers in ``ids`` at once, straight into ``out``.

        Parameters
        ----------
        kind, type: name of the table.
        ids: per server, [n] int64 global ids in any order. Repeats and n = 0 are allowed.
        out: [rows, dim], C-contiguous and writable, of the table's dtype; also [rows] if dim is 1.
            For a CPU tensor pass ``tensor.numpy()``, which shares its memory. Its content is
            undefined after an error.
        places: per server, the rows of ``out`` to fill, in the order of ``ids``: a slice, or [n]
            int64. Places of different servers must not overlap.
        limit: seconds that are left of a larger operation; None = the client's deadline. The
            smaller of the two counts.
        form: float16, bfloat16 or int8: the form that servers round float32 rows to before they
            send them. ``out`` gets the rounded values as float32. "" = rows are sent as stored.

        Raises
        ------
        BadRequest: the arguments do not fit each other. Nothing was sent.
        InvalidRequest: a server refused an unknown table, an id outside its range, a wrong dtype or
            dim, numbers that the form cannot hold, or a request meant for another server or
            division.
        ServerUnavailable, DeadlineExceeded, BadReply, ServerFault: a server failed. This is the
            first failure; requests to the other servers were cancelled.
        """
        self._check_open()
        if ids.keys() != places.keys():
            raise BadRequest(f"ids are for servers {sorted(ids)}, places for {sorted(places)}")
        fetch = Fetch(kind, type, out, form)
        parts = []
        for server, server_ids in ids.items():
            self._check_server(server)
            parts.append(Part(server, server_ids, fetch, places[server]))
        operation = self._operation(fetch.operation, limit)
        tasks = self._tasks(operation, parts, FETCH_ROWS, self._on_transfer)
        run_all(self._pool, tasks, operation.abandon)

    def begin_sampling(
        self,
        draws: Mapping[int, Sequence[RemoteDraw]],
        on_transfer: Callable[[int, int, int], None] | None = None,
    ) -> Callable[[], None]:
        """Ask all servers in ``draws`` to draw neighbours, without waiting for the answers.

        Parameters
        ----------
        draws: by server. Each draw holds its result once the returned function has returned.
        on_transfer: called for every ``SampleNeighbors`` request, with the arguments of the
            client's own ``on_transfer``.

        Returns
        -------
        A function that waits until all servers have answered. It raises as :meth:`fetch_rows`.

        Raises
        ------
        BadRequest: a draw is malformed. Nothing was sent.
        """
        self._check_open()
        questions = []
        for server, server_draws in draws.items():
            self._check_server(server)
            questions.append(DrawQuestion(server, server_draws))
        operation = self._operation("SampleNeighbors", None)
        tasks = self._tasks(operation, questions, SAMPLE_NEIGHBORS, on_transfer)
        return begin_all(self._pool, tasks, operation.abandon)

    def _operation(self, name: str, limit: float | None) -> Operation:
        return Operation(name, Deadline(self.deadline, limit), self._ids_per_request)

    def _tasks(
        self,
        operation: Operation,
        questions: Sequence[Question],
        method: str,
        on_transfer: Callable[[int, int, int], None] | None,
    ) -> list[Callable[[], None]]:
        """Return one task per server with a question that is not empty; it asks that question."""

        def ask(question: Question) -> None:
            server = question.server
            patience = self._patience(server, operation.name, operation.deadline, operation.stop)
            stub = partial(self._invoke_known, server, method, patience)
            operation.ask(question, stub, patience, partial(self._count, on_transfer))

        return [partial(ask, question) for question in questions if question.size]

    def _await_serving(self, server: int, deadline: Deadline, stop: threading.Event) -> None:
        patience = self._patience(server, "wait until serving", deadline, stop)
        while not self._says_serving(patience):
            patience.wait_to_retry("it says that it does not serve")
        description = self._describe(patience)
        self._check_identity(server, description, patience)
        with self._transfer_lock:
            self._ids_per_request = min(self._ids_per_request, description.ids_per_request)

    def _says_serving(self, patience: Patience) -> bool:
        request = features_pb2.HealthCheckRequest(service=SERVICE)
        reply = self._attempt(CHECK, request, patience)
        return bool(reply.status == features_pb2.HealthCheckResponse.SERVING)

    def _patience(
        self, server: int, operation: str, deadline: Deadline, stop: threading.Event
    ) -> Patience:
        address, replicas = self.addresses[server], self._connections[server]
        return Patience(server, address, operation, deadline, stop, replicas)

    def _check_identity(self, server: int, description: Any, patience: Patience) -> None:
        """Check that the server which was asked is the expected one, and remember that it is.

        Parameters
        ----------
        description: a :class:`ServerDescription`, or the protobuf message of that name.

        Raises
        ------
        BadReply: it is another server.
        """
        misfit = find_misfit(description, server, len(self.addresses), self._division)
        if misfit:
            raise patience.bad_reply(misfit)
        self._connections[server].know(patience.connection)

    def _describe(self, patience: Patience) -> ServerDescription:
        reply = self._attempt(DESCRIBE, features_pb2.DescribeRequest(), patience)
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

    def _attempt(self, method: str, request: Any, patience: Patience) -> Any:
        """Call a method with a single reply, as many times as ``patience`` allows."""
        while True:
            try:
                timeout = patience.attempt_seconds()
                return self._invoke(patience.connection, method, request, timeout)
            except grpc.RpcError as error:
                patience.retry_after_error(error)

    def _invoke_known(
        self, server: int, method: str, patience: Patience, request: Any, timeout: float
    ) -> Any:
        """Call a method after checking, once, that the server is the expected one."""
        connection = patience.connection
        if not self._connections[server].is_known(connection):
            question = features_pb2.DescribeRequest()
            description = self._invoke(connection, DESCRIBE, question, timeout)
            self._check_identity(server, description, patience)
        return self._invoke(connection, method, request, timeout)

    def _invoke(self, connection: Connection, method: str, request: Any, timeout: float) -> Any:
        try:
            return connection.call(method, request, timeout)
        except ValueError:
            # grpc raises this for a channel that was closed during the call.
            self._check_open()
            raise

    def _count(
        self,
        on_transfer: Callable[[int, int, int], None] | None,
        server: int,
        sent: int,
        received: int,
    ) -> None:
        if on_transfer is not None:
            with self._transfer_lock:
                on_transfer(server, sent, received)

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise BadRequest("the client is closed")

    def _check_server(self, server: int) -> None:
        if not 0 <= server < len(self.addresses):
            raise BadRequest(f"server {server} is outside [0, {len(self.addresses)})")


def find_misfit(description: Any, server: int, servers: int, division: str) -> str:
    """Say how a server differs from the expected one; "" = it does not.

    Parameters
    ----------
    description: a :class:`ServerDescription`, or the protobuf message of that name.
    server, servers: the expected index and number of servers.
    division: the expected fingerprint; "" = any.
    """
    if (description.server, description.servers) != (server, servers):
        return (
            f"it is server {description.server} of {description.servers}, expected {server} of "
            f"{servers}: addresses go by server index"
        )
    if description.ids_per_request < 1:
        return f"ids_per_request: expected at least 1, found {description.ids_per_request}"
    if division and description.division != division:
        return (
            f"it serves the division {description.division or 'without a fingerprint'}, expected "
            f"{division}: the graph was divided anew, or is another one"
        )
    return ""
