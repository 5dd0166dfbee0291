"""The client of all feature servers, which reads their rows into one preallocated array."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server import wire
from cache_server.client.calls import (
    Destination,
    DrawCall,
    IdsCall,
    MessageCall,
    PendingCall,
    RemoteDraw,
    RowsCall,
)
from cache_server.client.operation import Connection, Deadline, Links, OnTransfer, Operation
from cache_server.errors import BadRequest
from cache_server.generated import features_pb2
from cache_server.limits import IDS_PER_REQUEST
from cache_server.security import PLAIN, Security


class FeatureClient:
    """Asks any number of feature servers at once. Safe to use from several threads.

    It connects when it is first used, and once more in a process that was forked since. An address
    "host:port,host:port" names several servers of the same rows; if one fails, the next is asked.

    Parameters
    ----------
    deadline: seconds that one call of a method may take, all retries included.
    on_transfer: called as (server, bytes sent, bytes received), sizes of serialised messages, once
        for every ``FetchRows`` request, failed ones included; never from two threads at once.
    division: the fingerprint that every server must have; "" = any. Requests for rows and
        neighbours carry it, since another server may have taken over an address.

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
        self._links: dict[int, Links] = {}
        """by process id, since a forked process inherits channels that it cannot use"""

    def __enter__(self) -> FeatureClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel running calls and close all connections. A second call does nothing."""
        self._is_closed = True
        links = self._links.pop(os.getpid(), None)
        if links is not None:
            links.close()

    def wait_until_serving(self, limit: float) -> None:
        """Wait until every server is ready, and check that each is the expected one."""
        servers, described = len(self.addresses), features_pb2.ServerDescription
        expected = partial(find_misfit, servers=servers, division=self._division)
        calls = [
            MessageCall(server, described, find_fault=partial(expected, server=server))
            for server in range(servers)
        ]
        self._operate("wait until serving", wire.DESCRIBE, calls, Deadline(limit)).run()
        limits = (call.reply.ids_per_request for call in calls)
        self._ids_per_request = min(self._ids_per_request, *limits)

    def describe(self, server: int) -> Any:
        """Return what ``server`` holds: the message ``ServerDescription`` of features.proto."""
        return self._ask(wire.DESCRIBE, MessageCall(server, features_pb2.ServerDescription))

    def describe_graph(self, server: int = 0) -> Any:
        """Return what ``server`` says of the whole graph: the message ``GraphDescription``."""
        return self._ask(wire.DESCRIBE_GRAPH, MessageCall(server, features_pb2.GraphDescription))

    def is_serving(self, server: int) -> bool:
        """Return whether the health check of ``server`` succeeds; raise as :meth:`describe`."""
        request = features_pb2.HealthCheckRequest(service=wire.SERVICE).SerializeToString()
        call = MessageCall(server, features_pb2.HealthCheckResponse, request)
        status = self._ask(wire.CHECK, call).status
        return bool(status == features_pb2.HealthCheckResponse.SERVING)

    def read_ids(
        self, kind: str, type: str, first: int, count: int, server: int = 0
    ) -> NDArray[np.int64]:
        """Read a range of an array of ids that :meth:`describe_graph` lists: [count] int64.

        Kinds and types are those of ``ReadIdsRequest`` in features.proto. Errors are those of
        :meth:`fetch_rows`.
        """
        out = np.empty(max(0, count), np.int64)
        positions = np.arange(first, first + out.size)
        call = IdsCall(server, positions, Destination(kind, type, out), slice(None))
        self._operate(f"ReadIds {kind}/{type}", wire.READ_IDS, [call]).run()
        return out

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
        ids: per server, [n] int64 global ids in any order. Repeats and n = 0 are allowed.
        out: [rows, dim], C-contiguous and writable, of the table's dtype; also [rows] if dim is 1.
            For a CPU tensor pass ``tensor.numpy()``, which shares its memory. Its content is
            undefined after an error.
        places: per server, the rows of ``out`` to fill, in the order of ``ids``: a slice, or [n]
            int64. Places of different servers must not overlap.
        limit: seconds that are left of a larger operation, if less than the client's deadline.
        form: float16, bfloat16 or int8: what servers round float32 rows to on their way; "" = not.

        Raises
        ------
        BadRequest: the arguments do not fit each other. Nothing was sent.
        InvalidRequest: a server refused the request, or is another one than the client expects.
        ServerUnavailable, DeadlineExceeded, BadReply, ServerFault: a server failed. This is the
            first failure; requests to the other servers were cancelled.
        """
        if ids.keys() != places.keys():
            raise BadRequest(f"ids are for servers {sorted(ids)}, places for {sorted(places)}")
        table = Destination(kind, type, out, form)
        calls = [RowsCall(server, ids[server], table, places[server]) for server in ids]
        name, deadline = f"FetchRows {table.name}", Deadline(self.deadline, limit)
        self._operate(name, wire.FETCH_ROWS, calls, deadline, self._on_transfer).run()

    def begin_sampling(
        self,
        draws: Mapping[int, Sequence[RemoteDraw]],
        on_transfer: OnTransfer | None = None,
    ) -> Callable[[], None]:
        """Ask all servers in ``draws`` to draw neighbors; returns what waits for the answers."""
        calls = [DrawCall(server, server_draws) for server, server_draws in draws.items()]
        name, method = "SampleNeighbors", wire.SAMPLE_NEIGHBORS
        operation = self._operate(name, method, calls, on_transfer=on_transfer)
        operation.begin()
        return operation.finish

    def _ask(self, method: str, call: MessageCall) -> Any:
        self._operate(method.rpartition("/")[2], method, [call]).run()
        return call.reply

    def _operate(
        self,
        name: str,
        method: str,
        calls: Sequence[PendingCall],
        deadline: Deadline | None = None,
        on_transfer: OnTransfer | None = None,
    ) -> Operation:
        links, servers = self._open(), len(self.addresses)
        for call in calls:
            if not 0 <= call.server < servers:
                raise BadRequest(f"server {call.server} is outside [0, {servers})")
        deadline = deadline or Deadline(self.deadline)
        limit = self._ids_per_request
        return Operation(name, method, calls, links, deadline, limit, on_transfer)

    def _connect(self, server: int) -> list[Connection]:
        """Make the connections to the servers of one part, in the order in which to ask them."""
        part = wire.name_part(server, self._division) if self._division else ""
        addresses = self.addresses[server].split(",")
        # Clients begin with different ones. The choice need not be unpredictable.
        first = random.randrange(len(addresses))  # noqa: S311
        order = addresses[first:] + addresses[:first]
        return [Connection(address, self._security, part) for address in order]

    def _open(self) -> Links:
        """Return the connections of this process, and make them if it has none yet."""
        links = self._links.get(os.getpid())
        if links is None and not self._is_closed:
            made = Links(self.addresses, list(map(self._connect, range(len(self.addresses)))))
            # Of several threads that come here at once, the first one's connections are kept.
            links = self._links.setdefault(os.getpid(), made)
            if links is not made:
                made.close()
        if links is None or self._is_closed:
            self.close()
            raise BadRequest("the client is closed")
        return links


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
