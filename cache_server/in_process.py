"""Feature servers in the client's own process: the same messages without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cache_server.client import FeatureClient
from cache_server.connection import Connection, Replicas
from cache_server.errors import BadRequest
from cache_server.flow import FlowControl
from cache_server.memory_in_flight import MemoryInFlight
from cache_server.row_source import NO_SOURCES, SourceRequest
from cache_server.servicer import FeatureServicer
from cache_server.shard import Shard
from cache_server.wire import FETCH_ROWS, SAMPLE_NEIGHBORS

_REPLIES: Final = 1 << 20
"""replies at once: more than there can be, since none waits for a thread"""
_SEND_SECONDS: Final = 3600.0
_UNLIMITED_BYTES: Final = 1 << 62


def open_servicers(
    folders: Sequence[Path], sources: Mapping[str, SourceRequest] = NO_SOURCES
) -> list[FeatureServicer]:
    """Open a servicer for every server of a partitioned directory.

    Parameters
    ----------
    folders: the servers' folders, in order of server index.
    sources: as of :meth:`Shard.open`.

    Raises
    ------
    As :meth:`Shard.open`.
    """
    flow = FlowControl(_REPLIES, _SEND_SECONDS, MemoryInFlight(_UNLIMITED_BYTES), 0)
    return [FeatureServicer(Shard.open(folder, sources), flow) for folder in folders]


class InProcessClient(FeatureClient):
    """A client of servicers in this process. It counts the bytes that a network would carry.

    Parameters
    ----------
    servicers: by server index.
    addresses: names of the servers in errors.
    options: keywords of :class:`FeatureClient`.
    """

    def __init__(
        self, servicers: Sequence[FeatureServicer], addresses: Sequence[str], **options: Any
    ) -> None:
        super().__init__([], **options)
        self.addresses = tuple(addresses)
        self._connections = [Replicas([_Connection(servicer)]) for servicer in servicers]


class _Connection(Connection):
    """A connection that calls the methods of a servicer directly."""

    def __init__(self, servicer: FeatureServicer) -> None:
        self._replies: dict[str, Callable[..., Iterator[bytes]]] = {
            FETCH_ROWS: servicer.fetch_rows,
            SAMPLE_NEIGHBORS: servicer.sample_neighbors,
        }

    def call(self, method: str, request: Any, timeout: float) -> Any:
        """Call a method; ``timeout`` is ignored."""
        return _Reply(self._replies[method](iter([request]), _Context()))

    def close(self) -> None:
        """Do nothing: there is no channel."""


class _Reply:
    """A reply's messages with the interface of a gRPC call."""

    def __init__(self, messages: Iterator[bytes]) -> None:
        self._messages = messages

    def __iter__(self) -> Iterator[bytes]:
        return self._messages

    def cancel(self) -> None:
        """Do nothing: messages are made when they are read."""


class _Context:
    """The part of a gRPC call's context that a servicer uses."""

    def peer(self) -> str:
        """Return the name of the client."""
        return "this process"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Return no metadata: the client opened the servicer itself, so it needs no check."""
        return ()

    def set_trailing_metadata(self, metadata: object) -> None:
        """Ignore the hint when to try again."""

    def set_code(self, code: object) -> None:
        """Ignore the status; :meth:`set_details` follows with the reason."""

    def set_details(self, text: str) -> None:
        """Turn a refusal into an error.

        Raises
        ------
        BadRequest: always, with ``text``.
        """
        raise BadRequest(text)
