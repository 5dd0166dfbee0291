"""Feature servers in the client's own process: the same messages without a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cache_server.client.feature_client import FeatureClient
from cache_server.client.operation import Connection
from cache_server.service.flow import FlowControl, Reply
from cache_server.service.servicer import FeatureServicer
from cache_server.store.row_source import NO_SOURCES, SourceRequest
from cache_server.store.shard import Shard


def open_servicers(
    folders: Sequence[Path], sources: Mapping[str, SourceRequest] = NO_SOURCES
) -> list[FeatureServicer]:
    """Open a servicer for the folder of every server, in order."""
    return [FeatureServicer(Shard.open(folder, sources), FlowControl()) for folder in folders]


class InProcessClient(FeatureClient):
    """A client of servicers in this process. It counts the bytes that a network would carry."""

    def __init__(
        self, servicers: Sequence[FeatureServicer], addresses: Sequence[str], **options: Any
    ) -> None:
        super().__init__([], **options)
        self.addresses = tuple(addresses)
        self._servicers = servicers

    def _connect(self, server: int) -> list[Connection]:
        return [_Connection(self._servicers[server])]


class _Connection(Connection):
    """A connection that calls the methods of a servicer directly."""

    def __init__(self, servicer: FeatureServicer) -> None:
        self._servicer = servicer

    def call(self, method: str, request: bytes, timeout: float) -> Any:
        return _Messages(self._servicer.answers[method](request, Reply("this process")))

    def close(self) -> None:
        """Do nothing: there is no channel."""


class _Messages:
    """A reply's messages with the interface of a gRPC call."""

    def __init__(self, messages: Iterator[bytes]) -> None:
        self._messages = messages

    def __iter__(self) -> Iterator[bytes]:
        return self._messages

    def cancel(self) -> None:
        """Do nothing: messages are made when they are read."""
