"""The handlers of the feature service: what each request is answered with, and nothing else."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import grpc
import numpy as np

from cache_server.errors import BadRequest
from cache_server.generated import features_pb2
from cache_server.shard import Shard
from cache_server.wire import IDS_PER_REQUEST, SERVICE, ChunkWriter, decode_ids


class FeatureServicer:
    """Answers requests from one shard.

    Parameters
    ----------
    shard: what is served.
    ids_per_request: the most ids that one ``FetchRows`` may ask for.
    """

    def __init__(self, shard: Shard, ids_per_request: int = IDS_PER_REQUEST) -> None:
        self.shard = shard
        self.ids_per_request = ids_per_request

    def fetch_rows(self, request: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        """Yield serialised ``RowChunk`` messages: the rows of ``request.ids``, in their order.

        What cannot be answered ends the call with INVALID_ARGUMENT and a text that names it.
        """
        try:
            table = self.shard.table(request.kind, request.type)
            table.expect(request.dtype, request.dim)
            rows = table.local_rows(decode_ids(request.ids, self.ids_per_request))
        except BadRequest as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        for part, body, message in ChunkWriter(rows.size, table.row_bytes).chunks():
            table.gather(rows[part], body)
            yield bytes(message)

    def describe(self, request: Any, context: grpc.ServicerContext) -> Any:
        """A ``ServerDescription``: index, tables, versions and limits of this server."""
        tables = []
        for table in self.shard.tables.values():
            fields = asdict(table.spec)
            del fields["file"]
            tables.append(features_pb2.TableDescription(**fields))
        return features_pb2.ServerDescription(
            server=self.shard.server,
            servers=self.shard.servers,
            tables=tables,
            versions={
                "python": platform.python_version(),
                "numpy": np.__version__,
                "grpcio": grpc.__version__,
            },
            ids_per_request=self.ids_per_request,
        )

    def handler(self) -> grpc.GenericRpcHandler:
        """Both methods under their names in features.proto.

        ``FetchRows`` yields messages that are serialised already, so it has no serialiser.
        """
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "FetchRows": grpc.unary_stream_rpc_method_handler(
                    self.fetch_rows,
                    request_deserializer=features_pb2.FetchRowsRequest.FromString,
                ),
                "Describe": grpc.unary_unary_rpc_method_handler(
                    self.describe,
                    request_deserializer=features_pb2.DescribeRequest.FromString,
                    response_serializer=features_pb2.ServerDescription.SerializeToString,
                ),
            },
        )
