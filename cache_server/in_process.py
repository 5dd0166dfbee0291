"""Feature servers of one's own process: the same messages as over a network, and no network."""

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
"""at once: nobody has to wait for a thread"""
_SEND_SECONDS: Final = 3600.0
_NO_BOUND: Final = 1 << 62
"""of memory"""


def open_servicers(
    folders: Sequence[Path], sources: Mapping[str, SourceRequest] = NO_SOURCES
) -> list[FeatureServicer]:
    """What answers for every server of a partitioned directory.

    Parameters
    ----------
    folders: of the servers, in their order. sources: as of :meth:`Shard.open`.

    Raises
    ------
    As :meth:`Shard.open`.
    """
    flow = FlowControl(_REPLIES, _SEND_SECONDS, MemoryInFlight(_NO_BOUND), 0)
    return [FeatureServicer(Shard.open(folder, sources), flow) for folder in folders]


class InProcessClient(FeatureClient):
    """Asks servicers of this process. What it counts is what would cross a network.

    Parameters
    ----------
    servicers: by server. addresses: their names in errors. options: as of :class:`FeatureClient`.
    """

    def __init__(
        self, servicers: Sequence[FeatureServicer], addresses: Sequence[str], **options: Any
    ) -> None:
        super().__init__([], **options)
        self.addresses = tuple(addresses)
        self._connections = [Replicas([_Connection(each)]) for each in servicers]


class _Connection(Connection):
    """Calls the methods of a servicer."""

    def __init__(self, servicer: FeatureServicer) -> None:
        self._replies: dict[str, Callable[..., Iterator[bytes]]] = {
            FETCH_ROWS: servicer.fetch_rows,
            SAMPLE_NEIGHBORS: servicer.sample_neighbors,
        }

    def call(self, method: str, request: Any, timeout: float) -> Any:
        """See :class:`Connection`; nothing takes longer than it takes."""
        return _Reply(self._replies[method](iter([request]), _Context()))

    def close(self) -> None:
        """Nothing is on its way."""


class _Reply:
    """A reply under way, as gRPC has it."""

    def __init__(self, messages: Iterator[bytes]) -> None:
        self._messages = messages

    def __iter__(self) -> Iterator[bytes]:
        return self._messages

    def cancel(self) -> None:
        """Nothing is on its way."""


class _Context:
    """What a servicer is told of a call."""

    def peer(self) -> str:
        """Who asks."""
        return "this process"

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """Whoever asks has opened the servicer."""
        return ()

    def set_trailing_metadata(self, metadata: object) -> None:
        """Nobody is told to come again."""

    def set_code(self, code: object) -> None:
        """The text that follows says more."""

    def set_details(self, text: str) -> None:
        """A refusal.

        Raises
        ------
        BadRequest: always.
        """
        raise BadRequest(text)
