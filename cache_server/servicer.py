"""The handlers of the feature service.

Requests arrive as bytes and are decoded here, since grpcio leaks memory for every request that one
of its deserialisers refuses.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from cache_server.defaults import IDS_PER_REQUEST
from cache_server.errors import BadRequest
from cache_server.events import events
from cache_server.flow import FlowControl, Stream
from cache_server.generated import features_pb2
from cache_server.memory_in_flight import (
    COPIES_OF_CHUNK,
    COPIES_OF_DRAW,
    COPIES_OF_REQUEST,
    NoRoom,
)
from cache_server.metrics import ServerMetrics
from cache_server.retry import retry_hint
from cache_server.rounded_rows import RoundedRows
from cache_server.sampling_spec import DrawKey, SamplingRequest, SamplingSpec
from cache_server.shard import Shard
from cache_server.table import Table, TableDescription
from cache_server.wire import (
    CHUNK_BYTES,
    EDGES_PER_CHUNK,
    PART_HEADER,
    SERVICE,
    ChunkSeeds,
    ChunkWriter,
    check_name,
    decode_ids,
    name_part,
    write_neighbours,
)

if TYPE_CHECKING:
    from cache_server.shard_topology import ShardTopology

HEALTH_SERVICE: Final = "grpc.health.v1.Health"
_LONGEST_TEXT: Final = 1000
"""characters of an error: it travels in a header, and clients refuse headers of more than 8 KiB"""

_Request = TypeVar("_Request", bound=Message)


class FeatureServicer:
    """Answers requests from one shard.

    Parameters
    ----------
    shard: the tables to serve.
    flow: limits of running replies.

    Attributes
    ----------
    metrics: counts of the requests and replies.
    ids_per_request: the most ids that one ``FetchRows`` may ask for.
    is_serving: the answer to health checks.
    """

    def __init__(
        self,
        shard: Shard,
        flow: FlowControl,
        ids_per_request: int = IDS_PER_REQUEST,
    ) -> None:
        self.shard = shard
        self.ids_per_request = ids_per_request
        self.is_serving = False
        self._flow = flow
        self.metrics = ServerMetrics(shard.server, shard.servers, flow)
        self._own_name = name_part(shard.server, shard.division)

    def fetch_rows(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Yield serialised ``RowChunk`` messages with the rows of the request's ids, in order.

        A request that cannot be answered ends the call with INVALID_ARGUMENT and a text that names
        the reason. A request that exceeds a limit of this server ends it with RESOURCE_EXHAUSTED.
        """
        return self._reply("FetchRows", self._rows, requests, context)

    def sample_neighbors(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Yield serialised ``NeighborChunk`` messages, in the order of the draws and their nodes.

        Errors end the call as in :meth:`fetch_rows`.
        """
        return self._reply("SampleNeighbors", self._neighbours, requests, context)

    def describe(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer with a ``ServerDescription``: index, tables, versions and limits."""
        try:
            _decode(features_pb2.DescribeRequest, request)
        except BadRequest as error:
            self._refuse_at_once("Describe", context, str(error))
            return b""
        field_names = [field.name for field in fields(TableDescription)]
        tables = []
        for table in self.shard.tables.values():
            spec = {name: getattr(table.spec, name) for name in field_names}
            tables.append(features_pb2.TableDescription(**spec))
        description = features_pb2.ServerDescription(
            server=self.shard.server,
            servers=self.shard.servers,
            tables=tables,
            versions={
                "python": platform.python_version(),
                "numpy": np.__version__,
                "grpcio": grpc.__version__,
            },
            ids_per_request=self.ids_per_request,
            division=self.shard.division,
        )
        self.metrics.count_request("Describe", grpc.StatusCode.OK)
        return description.SerializeToString()

    def check(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        """Answer with a ``HealthCheckResponse`` of the standard health service."""
        try:
            service = _decode(features_pb2.HealthCheckRequest, request).service
        except BadRequest as error:
            self._refuse_at_once("Check", context, str(error))
            return b""
        if service not in ("", SERVICE):
            text = f"service: expected {SERVICE} or none"
            self._refuse_at_once("Check", context, text, grpc.StatusCode.NOT_FOUND)
            return b""
        self.metrics.count_request("Check", grpc.StatusCode.OK)
        statuses = features_pb2.HealthCheckResponse
        status = statuses.SERVING if self.is_serving else statuses.NOT_SERVING
        return features_pb2.HealthCheckResponse(status=status).SerializeToString()

    def handlers(self, quick: futures.ThreadPoolExecutor) -> list[grpc.GenericRpcHandler]:
        """Return the handlers of all methods, which take and return serialised messages.

        A request for rows or neighbours is a stream of one message to gRPC. The handler can then
        count the call before it reads the message, and give it up if no message comes.

        Parameters
        ----------
        quick: threads for requests that need no rows, so that these never wait for others.
        """
        describe, check = partial(self.describe), partial(self.check)
        for method in (describe, check):
            method.experimental_thread_pool = quick  # type: ignore[attr-defined]
        return [
            grpc.method_handlers_generic_handler(
                SERVICE,
                {
                    "FetchRows": grpc.stream_stream_rpc_method_handler(self.fetch_rows),
                    "SampleNeighbors": grpc.stream_stream_rpc_method_handler(self.sample_neighbors),
                    "Describe": grpc.unary_unary_rpc_method_handler(describe),
                },
            ),
            grpc.method_handlers_generic_handler(
                HEALTH_SERVICE, {"Check": grpc.unary_unary_rpc_method_handler(check)}
            ),
        ]

    def _receive(self, requests: Iterator[bytes], stream: Stream) -> bytes:
        """Read the single request of a call, and reserve the memory that it needs.

        Raises
        ------
        BadRequest: no request came.
        NoRoom: the memory is not available.
        """
        with stream.wait_for_client():
            request = next(requests, None)
        if request is None:
            raise BadRequest("expected one request, found none")
        self._flow.hold(stream, COPIES_OF_REQUEST * len(request))
        return request

    def _rows(self, requests: Iterator[bytes], stream: Stream) -> Iterator[bytes]:
        request = self._receive(requests, stream)
        table, rows = self._look_up(request)
        writer = ChunkWriter(rows.size, table.row_bytes, request)
        chunk = COPIES_OF_CHUNK * writer.chunk_bytes
        rounding = writer.chunk_rows * table.scratch_bytes
        self._flow.hold(stream, stream.held + chunk + rounding)
        for part in writer.parts:
            chunk_rows = rows[part]
            message = writer.write(chunk_rows.size, partial(table.gather, chunk_rows))
            stream.count_message(message, rows=chunk_rows.size)
            yield message

    def _neighbours(self, requests: Iterator[bytes], stream: Stream) -> Iterator[bytes]:
        request = self._receive(requests, stream)
        seeds = ChunkSeeds(request)
        request_bytes = stream.held
        self._flow.hold(stream, request_bytes + COPIES_OF_DRAW * CHUNK_BYTES)
        # All draws are checked before the first is answered.
        for in_edges, draw in self._look_up_draws(request):
            for drawn, in_degrees in in_edges.draw(draw, EDGES_PER_CHUNK):
                message = write_neighbours(drawn, in_degrees, seeds.take())
                # The chunk of a node with very many neighbours exceeds the usual size.
                drawn_bytes = COPIES_OF_DRAW * max(CHUNK_BYTES, len(message))
                self._flow.hold(stream, request_bytes + drawn_bytes, asks=False)
                stream.count_message(message, neighbours=drawn[1].size)
                yield message

    def _reply(
        self,
        method: str,
        answer: Callable[[Iterator[bytes], Stream], Iterator[bytes]],
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> Iterator[bytes]:
        """Yield and count a reply's messages; a refusal ends the call with a status and text."""
        status, stream = grpc.StatusCode.UNKNOWN, Stream(context)
        try:
            self._check_addressee(context)
            with self._flow.admit(stream):
                for message in answer(requests, stream):
                    # gRPC goes on with this generator when the client has room for more.
                    with stream.wait_for_client():
                        yield message
            status = grpc.StatusCode.OK
        except BadRequest as error:
            status = grpc.StatusCode.INVALID_ARGUMENT
            events.note("refused", str(error), method=method, peer=stream.names[0])
            _refuse(context, str(error), status)
        except NoRoom as error:
            status = grpc.StatusCode.RESOURCE_EXHAUSTED
            self._flow.make_room(error.client)
            events.note("no room", str(error), method=method, peer=stream.names[0])
            context.set_trailing_metadata(retry_hint(self._flow.memory.waiting))
            _refuse(context, str(error), status)
        except (GeneratorExit, grpc.RpcError):
            # The client has gone or does not read.
            status = grpc.StatusCode.CANCELLED
            raise
        finally:
            self.metrics.count_reply(method, status, stream)

    def _refuse_at_once(
        self,
        method: str,
        context: grpc.ServicerContext,
        text: str,
        code: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT,
    ) -> None:
        self.metrics.count_request(method, code)
        _refuse(context, text, code)

    def _check_addressee(self, context: grpc.ServicerContext) -> None:
        """Check that the client expects this server and division at this address.

        Raises
        ------
        BadRequest: it expects another one; names both.
        """
        for key, expected in context.invocation_metadata():
            if key == PART_HEADER and expected != self._own_name:
                raise BadRequest(
                    f"expected {expected!s:.200}, found {self._own_name} at its address"
                )

    def _look_up(self, raw: bytes) -> tuple[Table | RoundedRows, NDArray[np.int64]]:
        """Decode a ``FetchRowsRequest`` into a table and [n] int64 rows of it.

        The table rounds its rows if the request names a form.

        Raises
        ------
        BadRequest: the request is malformed, or there are no such rows; names the field.
        """
        request = _decode(features_pb2.FetchRowsRequest, raw)
        for field in ("kind", "type", "dtype", "form"):
            check_name(field, getattr(request, field))
        table = self.shard.table(request.kind, request.type)
        table.expect(request.dtype, request.dim)
        rows = table.local_rows(decode_ids(request.ids, self.ids_per_request))
        return RoundedRows(table, request.form) if request.form else table, rows

    def _look_up_draws(self, raw: bytes) -> list[tuple[ShardTopology, SamplingRequest]]:
        """Decode and check a ``SampleNeighborsRequest``; errors as of :meth:`_look_up`."""
        request = _decode(features_pb2.SampleNeighborsRequest, raw)
        nodes_left = pairs_left = self.ids_per_request
        draws = []
        for message in request.draws:
            check_name("relation", message.relation)
            in_edges = self.shard.edges_into(message.relation)
            words = message.key, message.later_key, message.dependence or 1, message.elapsed
            key = DrawKey(*map(np.uint64, words))
            spec = SamplingSpec.parse(message.version, message.method, message.fanout, key)
            nodes = decode_ids(message.nodes, nodes_left)
            until = decode_ids(message.times, nodes_left, "times") if message.times else None
            if spec.in_time and not nodes.size:
                until = nodes
            pairs = [
                decode_ids(getattr(message, field), pairs_left, field)
                for field in ("without_sources", "without_destinations")
            ]
            draw = SamplingRequest(nodes, spec, until, *pairs)
            in_edges.check(draw)
            nodes_left -= nodes.size
            pairs_left -= draw.dst.size
            draws.append((in_edges, draw))
        return draws


def _decode(message_type: type[_Request], raw: bytes) -> _Request:
    request = message_type()
    try:
        request.ParseFromString(raw)
    except DecodeError:
        raise BadRequest(f"{len(raw)} bytes are not a {message_type.DESCRIPTOR.name}") from None
    return request


def _refuse(context: Any, text: str, code: grpc.StatusCode) -> None:
    """End a call with a status and a text, without the exception that ``context.abort`` raises."""
    context.set_code(code)
    context.set_details(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ...")
