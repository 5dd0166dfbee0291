"""The client of all feature servers, which reads their rows into one preallocated array."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from functools import partial
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from cache_server import wire
from cache_server.client.connection import Connection, Replicas
from cache_server.client.operation import Operation, Task
from cache_server.client.retry import Deadline, RetryPolicy
from cache_server.client.rows import Destination, IdsCall, RowsCall
from cache_server.errors import BadRequest
from cache_server.generated import features_pb2
from cache_server.limits import IDS_PER_REQUEST
from cache_server.pending_call import PendingCall
from cache_server.sampling import DrawQuestion, RemoteDraw
from cache_server.security import PLAIN, Security

OnTransfer = Callable[[int, int, int], None]


class _Links:
    """A process's connections to the servers, the threads that wait for them, and their lock."""

    def __init__(self, replicas: Sequence[Replicas]) -> None:
        self.process = os.getpid()
        self.replicas = replicas
        self.pool = futures.ThreadPoolExecutor(max(4, 2 * len(replicas)), "feature-client")
        self.lock = threading.Lock()


class FeatureClient:
    """Asks any number of feature servers at once. Safe to use from several threads.

    It connects when it is first used, and once more in a process that was forked since.

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
        on_transfer: OnTransfer | None = None,
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
        self._security = security
        self._on_transfer = on_transfer
        self._is_closed = False
        self._links: _Links | None = None

    def __enter__(self) -> FeatureClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel running calls and close all connections. A second call does nothing."""
        with _opening:
            links, self._links, self._is_closed = self._links, None, True
        if links is not None and links.process == os.getpid():
            for replicas in links.replicas:
                replicas.close()
            links.pool.shutdown()

    def wait_until_serving(self, limit: float) -> None:
        """Wait until every server is ready, and check that each is the expected one."""
        operation = self._operation("wait until serving", limit, limit)
        limits = [self._ids_per_request]

        def wait(server: int) -> None:
            retry = self._retry(operation, server)
            description = self._attempt(wire.DESCRIBE, features_pb2.DescribeRequest(), retry)
            misfit = find_misfit(description, server, len(self.addresses), self._division)
            if misfit:
                raise retry.bad_reply(misfit)
            limits.append(description.ids_per_request)

        operation.run([partial(wait, server) for server in range(len(self.addresses))])
        self._ids_per_request = min(limits)

    def describe(self, server: int) -> Any:
        """Return what ``server`` holds: the message ``ServerDescription`` of features.proto."""
        retry = self._retry(self._operation("Describe"), server)
        return self._attempt(wire.DESCRIBE, features_pb2.DescribeRequest(), retry)

    def describe_graph(self, server: int = 0) -> Any:
        """Return what ``server`` says of the whole graph: the message ``GraphDescription``."""
        retry = self._retry(self._operation("DescribeGraph"), server)
        return self._attempt(wire.DESCRIBE_GRAPH, features_pb2.DescribeGraphRequest(), retry)

    def read_ids(
        self, kind: str, type: str, first: int, count: int, server: int = 0
    ) -> NDArray[np.int64]:
        """Read a range of an array of ids that :meth:`describe_graph` lists: [count] int64.

        Parameters
        ----------
        kind, type: "splits" and the name of a split, for its original ids; "original_ids" or
            "global_ids" and a node type, for its map by global or by original id; "edge_ids" and a
            relation as ``src/rel/dst``, for those of the edges that the server stores, in the order
            of their CSC.

        Raises
        ------
        InvalidRequest: the server has no such array, or it is shorter.
        CallError: as of :meth:`fetch_rows`.
        """
        out = np.empty(max(0, count), np.int64)
        operation = self._operation(f"ReadIds {kind}/{type}")
        self._check_server(server)
        call = IdsCall(server, kind, type, first, out)
        operation.run(self._tasks(operation, [call], wire.READ_IDS, None))
        return out

    def is_serving(self, server: int) -> bool:
        """Return whether the health check of ``server`` succeeds; raise as :meth:`describe`."""
        request = features_pb2.HealthCheckRequest(service=wire.SERVICE)
        reply = self._attempt(wire.CHECK, request, self._retry(self._operation("Check"), server))
        return bool(reply.status == features_pb2.HealthCheckResponse.SERVING)

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
        if ids.keys() != places.keys():
            raise BadRequest(f"ids are for servers {sorted(ids)}, places for {sorted(places)}")
        destination = Destination(kind, type, out, form)
        calls = []
        for server, server_ids in ids.items():
            self._check_server(server)
            calls.append(RowsCall(server, server_ids, destination, places[server]))
        operation = self._operation(f"FetchRows {destination.name}", left=limit)
        operation.run(self._tasks(operation, calls, wire.FETCH_ROWS, self._on_transfer))

    def begin_sampling(
        self,
        draws: Mapping[int, Sequence[RemoteDraw]],
        on_transfer: OnTransfer | None = None,
    ) -> Callable[[], None]:
        """Ask all servers in ``draws`` to draw neighbors, without waiting for the answers."""
        calls = []
        for server, server_draws in draws.items():
            self._check_server(server)
            calls.append(DrawQuestion(server, server_draws))
        operation = self._operation("SampleNeighbors")
        operation.begin(self._tasks(operation, calls, wire.SAMPLE_NEIGHBORS, on_transfer))
        return operation.finish

    def _connect(self, server: int) -> Replicas:
        """Make the connections to the servers of one part."""
        part = wire.name_part(server, self._division) if self._division else ""
        addresses = self.addresses[server].split(",")
        return Replicas([Connection(address, self._security, part) for address in addresses])

    def _open(self) -> _Links:
        """Return the connections of this process, and make them if it has none yet."""
        links = self._links
        if links is not None and links.process == os.getpid():
            return links
        with _opening:
            self._check_open()
            if self._links is None or self._links.process != os.getpid():
                self._links = _Links([self._connect(i) for i in range(len(self.addresses))])
            return self._links

    def _operation(
        self, name: str, limit: float | None = None, left: float | None = None
    ) -> Operation:
        deadline = Deadline(self.deadline if limit is None else limit, left)
        return Operation(name, deadline, self._open().pool)

    def _retry(self, operation: Operation, server: int) -> RetryPolicy:
        self._check_server(server)
        address, replicas = self.addresses[server], self._open().replicas[server]
        names = server, address, operation.name
        return RetryPolicy(*names, operation.deadline, operation.stop, replicas)

    def _tasks(
        self,
        operation: Operation,
        calls: Sequence[PendingCall],
        method: str,
        on_transfer: OnTransfer | None,
    ) -> list[Task]:
        """Return one task per server with a call that is not empty; it makes that call."""
        lock = self._open().lock

        def count(server: int, sent: int, received: int) -> None:
            if on_transfer is not None:
                with lock:
                    on_transfer(server, sent, received)

        def ask(call: PendingCall) -> None:
            retry = self._retry(operation, call.server)
            stub = partial(self._invoke, method, retry)
            operation.ask(call, stub, retry, self._ids_per_request, count)

        return [partial(ask, call) for call in calls if call.size]

    def _attempt(self, method: str, request: Any, retry: RetryPolicy) -> Any:
        """Call a method with a single reply, as many times as ``retry`` allows."""
        while True:
            try:
                return self._invoke(method, retry, request, retry.attempt_seconds())
            except grpc.RpcError as error:
                retry.retry_after_error(error)

    def _invoke(self, method: str, retry: RetryPolicy, request: Any, timeout: float) -> Any:
        try:
            return retry.connection.call(method, request, timeout)
        except ValueError:
            # grpc raises this for a channel that was closed during the call.
            self._check_open()
            raise

    def _check_open(self) -> None:
        if self._is_closed:
            raise BadRequest("the client is closed")

    def _check_server(self, server: int) -> None:
        if not 0 <= server < len(self.addresses):
            raise BadRequest(f"server {server} is outside [0, {len(self.addresses)})")


_opening = threading.Lock()
"""held while a client connects"""


def _renew_lock() -> None:
    """Forget who held the lock in the process that this one was forked from."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def find_misfit(description: Any, server: int, servers: int, division: str) -> str:
    """Say how a server's description differs from the expected one; "" = it does not."""
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
