"""The handlers of the feature service.

Requests arrive as bytes and are decoded here, since grpcio leaks memory for every request that one
of its deserialisers refuses.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc
import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from cache_server import wire
from cache_server.draws.spec import DrawKey, SamplingRequest, SamplingSpec
from cache_server.errors import BadRequest
from cache_server.events import events
from cache_server.generated import features_pb2
from cache_server.limits import IDS_PER_REQUEST
from cache_server.security import Token
from cache_server.service.flow import (
    COPIES_OF_CHUNK,
    COPIES_OF_DRAW,
    COPIES_OF_REQUEST,
    FlowControl,
    NoRoom,
    Reply,
)
from cache_server.service.metrics import ServerMetrics
from cache_server.store.shard import GRAPH_FILE, PARTITION_FILE, Shard
from cache_server.store.table import Table, round_table

if TYPE_CHECKING:
    from cache_server.store.topology import ShardTopology

_QUICK_THREADS: Final = 2
_MOST_DRAWS: Final = 1 << 12
"""since draws of no node would take memory that nobody counts"""
_LONGEST_TEXT: Final = 1000
"""characters of an error: it travels in a header, and clients refuse headers of more than 8 KiB"""

_Request = TypeVar("_Request", bound=Message)
_Answer = Callable[[bytes, Reply], Iterator[bytes]]


class FeatureServicer(grpc.GenericRpcHandler):
    """Answers requests from one shard.

    A request that cannot be answered ends with INVALID_ARGUMENT and a text that names the reason,
    one that exceeds a limit of this server with RESOURCE_EXHAUSTED.
    """

    def __init__(
        self,
        shard: Shard,
        flow: FlowControl,
        ids_per_request: int = IDS_PER_REQUEST,
        token: Token | None = None,
    ) -> None:
        self.shard = shard
        self.ids_per_request = ids_per_request
        self.is_serving = False
        self._flow, self._token = flow, token
        self.metrics = ServerMetrics(shard.server, shard.servers, flow)
        self._own_name = wire.name_part(shard.server, shard.division)
        self.answers: dict[str, _Answer] = {
            wire.FETCH_ROWS: self._fetch_rows,
            wire.SAMPLE_NEIGHBORS: self._sample_neighbors,
            wire.READ_IDS: self._read_ids,
            wire.DESCRIBE_GRAPH: self._describe_graph,
        }
        """by a method's full name, what yields the serialised messages of a reply"""
        # A request is a stream of one message to gRPC. So the handler counts the call before it
        # reads the message, and gives it up if no message comes.
        self._handlers = {
            method: grpc.stream_stream_rpc_method_handler(partial(self._stream, method))
            for method in self.answers
        }
        quick = futures.ThreadPoolExecutor(_QUICK_THREADS, thread_name_prefix="health")
        for method, describe in ((wire.DESCRIBE, self._describe), (wire.CHECK, self._check)):
            handler: Any = partial(self._answer, method, describe)
            handler.experimental_thread_pool = quick
            self._handlers[method] = grpc.unary_unary_rpc_method_handler(handler)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of a method, which takes and returns serialised messages."""
        method, shown = handler_call_details.method, handler_call_details.invocation_metadata
        if self._token is None or self._token.is_shown_by(shown or ()):
            return self._handlers.get(method)
        self.metrics.count_refused_token(method)
        # As a stream method the handler gets the call before any message is read.
        return grpc.stream_stream_rpc_method_handler(_refuse_stranger)

    def _describe(self, raw: bytes) -> Message:
        _decode(features_pb2.DescribeRequest, raw)
        return features_pb2.ServerDescription(
            server=self.shard.server,
            servers=self.shard.servers,
            tables=_describe_tables(self.shard.tables.values()),
            versions={
                "python": platform.python_version(),
                "numpy": np.__version__,
                "grpcio": grpc.__version__,
            },
            ids_per_request=self.ids_per_request,
            division=self.shard.division,
        )

    def _check(self, raw: bytes) -> Message:
        service = _decode(features_pb2.HealthCheckRequest, raw).service
        if service not in ("", wire.SERVICE):
            raise BadRequest(f"service: expected {wire.SERVICE} or none")
        status = "SERVING" if self.is_serving else "NOT_SERVING"
        return features_pb2.HealthCheckResponse(status=status)

    def _answer(
        self,
        path: str,
        answer: Callable[[bytes], Message],
        raw: bytes,
        context: grpc.ServicerContext,
    ) -> bytes:
        """Answer a request with a single message, or refuse it, and count it."""
        status, reply = grpc.StatusCode.OK, b""
        try:
            reply = answer(raw).SerializeToString()
        except BadRequest as error:
            status = grpc.StatusCode.INVALID_ARGUMENT
            _refuse(context, str(error), status)
        self.metrics.count_request(path, status)
        return reply

    def _stream(
        self, path: str, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        """Yield and count a reply's messages; a refusal ends the call with a status and text."""
        status, reply = grpc.StatusCode.UNKNOWN, Reply(context.peer(), context.cancel)
        try:
            self._check_addressee(context)
            with self._flow.admit(reply):
                with reply.wait_for_client():
                    request = next(requests, None)
                if request is None:
                    raise BadRequest("expected one request, found none")
                self._flow.hold(reply, COPIES_OF_REQUEST * len(request))
                for message in self.answers[path](request, reply):
                    # gRPC goes on with this generator when the client has room for more.
                    with reply.wait_for_client():
                        yield message
            status = grpc.StatusCode.OK
        except (BadRequest, NoRoom) as error:
            event, status = "refused", grpc.StatusCode.INVALID_ARGUMENT
            if isinstance(error, NoRoom):
                event, status = "no room", grpc.StatusCode.RESOURCE_EXHAUSTED
                self._flow.make_room(error.address)
            events.note(event, str(error), method=path.rpartition("/")[2], peer=reply.peer)
            _refuse(context, str(error), status)
        except (GeneratorExit, grpc.RpcError):
            # The client has gone or does not read.
            status = grpc.StatusCode.CANCELLED
            raise
        finally:
            self.metrics.count_reply(path, status, reply)

    def _check_addressee(self, context: grpc.ServicerContext) -> None:
        for key, expected in context.invocation_metadata():
            if key == wire.PART_HEADER and expected != self._own_name:
                raise BadRequest(
                    f"expected {expected!s:.200}, found {self._own_name} at its address"
                )

    def _describe_graph(self, raw: bytes, reply: Reply) -> Iterator[bytes]:
        """Yield the serialised ``GraphDescription``, which may be large."""
        _decode(features_pb2.DescribeGraphRequest, raw)
        files = self.shard.graph
        graph, partition = map(files.read_text, (GRAPH_FILE, PARTITION_FILE))
        self._flow.hold(reply, reply.held + COPIES_OF_CHUNK * (len(graph) + len(partition)))
        message = features_pb2.GraphDescription(
            graph=graph, partition=partition, ids=_describe_tables(files.tables())
        ).SerializeToString()
        reply.count_message(message)
        yield message

    def _fetch_rows(self, raw: bytes, reply: Reply) -> Iterator[bytes]:
        """Yield serialised ``RowChunk`` messages with the rows of the request's ids, in order."""
        request = _decode(features_pb2.FetchRowsRequest, raw, "kind", "type", "dtype", "form")
        table = self.shard.table(request.kind, request.type)
        table.expect(request.dtype, request.dim)
        rows = table.local_rows(wire.decode_ids(request.ids, self.ids_per_request))
        if request.form:
            table = round_table(table, request.form, self.shard.server)
        yield from self._send_rows(raw, reply, table, rows)

    def _read_ids(self, raw: bytes, reply: Reply) -> Iterator[bytes]:
        request = _decode(features_pb2.ReadIdsRequest, raw, "kind", "type")
        table = self.shard.graph.table(request.kind, request.type)
        first, count = request.first, request.count
        if not (0 <= first <= first + count <= table.spec.count):
            found = f"{first} and {count}"
            raise BadRequest(f"first, count: expected a range of {table.spec.count}, found {found}")
        if count > self.ids_per_request:
            raise BadRequest(f"count: {count} ids exceed the limit of {self.ids_per_request}")
        self._flow.hold(reply, COPIES_OF_REQUEST * wire.ID_BYTES * count)
        yield from self._send_rows(raw, reply, table, np.arange(first, first + count))

    def _send_rows(
        self, raw: bytes, reply: Reply, table: Table, rows: NDArray[np.int64]
    ) -> Iterator[bytes]:
        step = min(rows.size, max(1, wire.CHUNK_BYTES // table.row_bytes))
        seeds = wire.chunk_seeds(raw)
        chunk = COPIES_OF_CHUNK * step * table.row_bytes
        self._flow.hold(reply, reply.held + chunk + step * table.scratch_bytes)
        body = np.empty((step, table.row_bytes), np.uint8)
        for first in range(0, rows.size, step or 1):
            part = rows[first : first + step]
            table.gather(part, body[: part.size])
            message = wire.write_chunk(body[: part.size], next(seeds))
            reply.count_message(message, rows=part.size)
            yield message

    def _sample_neighbors(self, raw: bytes, reply: Reply) -> Iterator[bytes]:
        """Yield serialised ``NeighborChunk`` messages, in the order of the draws and their nodes.

        All draws are checked before the first is answered.
        """
        seeds = wire.chunk_seeds(raw)
        request_bytes = reply.held
        self._flow.hold(reply, request_bytes + COPIES_OF_DRAW * wire.CHUNK_BYTES)
        for in_edges, draw in self._look_up_draws(raw):
            for drawn, in_degrees in in_edges.draw(draw, wire.EDGES_PER_CHUNK):
                message = wire.write_neighbours(drawn, in_degrees, next(seeds))
                # The chunk of a node with very many neighbours exceeds the usual size.
                drawn_bytes = COPIES_OF_DRAW * max(wire.CHUNK_BYTES, len(message))
                self._flow.hold(reply, request_bytes + drawn_bytes, asks=False)
                reply.count_message(message, neighbours=drawn[1].size)
                yield message

    def _look_up_draws(self, raw: bytes) -> list[tuple[ShardTopology, SamplingRequest]]:
        request = _decode(features_pb2.SampleNeighborsRequest, raw)
        if len(request.draws) > _MOST_DRAWS:
            found = len(request.draws)
            raise BadRequest(f"draws: expected at most {_MOST_DRAWS} in a request, found {found}")
        nodes_left = pairs_left = self.ids_per_request
        draws = []
        for message in request.draws:
            wire.check_name("relation", message.relation)
            in_edges = self.shard.edges_into(message.relation)
            words = message.key, message.later_key, message.dependence or 1, message.elapsed
            key = DrawKey(*map(np.uint64, words))
            spec = SamplingSpec.parse(message.version, message.method, message.fanout, key)
            nodes = wire.decode_ids(message.nodes, nodes_left)
            until = wire.decode_ids(message.times, nodes_left, "times") if message.times else None
            if spec.in_time and not nodes.size:
                until = nodes
            pairs = [
                wire.decode_ids(getattr(message, field), pairs_left, field)
                for field in ("without_sources", "without_destinations")
            ]
            draw = SamplingRequest(nodes, spec, until, *pairs)
            in_edges.check(draw)
            nodes_left -= nodes.size
            pairs_left -= draw.dst.size
            draws.append((in_edges, draw))
        return draws


def _describe_tables(tables: Iterable[Table]) -> list[Message]:
    fields = features_pb2.TableDescription.DESCRIPTOR.fields_by_name
    return [
        features_pb2.TableDescription(**{name: getattr(table.spec, name) for name in fields})
        for table in tables
    ]


def _decode(message_type: type[_Request], raw: bytes, *names: str) -> _Request:
    request = message_type()
    try:
        request.ParseFromString(raw)
    except DecodeError:
        raise BadRequest(f"{len(raw)} bytes are not a {message_type.DESCRIPTOR.name}") from None
    for field in names:
        wire.check_name(field, getattr(request, field))
    return request


def _refuse_stranger(_requests: Any, context: grpc.ServicerContext) -> Any:
    events.note("refused token", "a request without the token", peer=context.peer())
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "expected this cluster's token")


def _refuse(context: Any, text: str, code: grpc.StatusCode) -> None:
    """End a call with a status and a text, without the exception that ``context.abort`` raises."""
    context.set_code(code)
    context.set_details(text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} ...")
