"""Feature servers of one's own process: the same messages as over a network, and no network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cache_server.client import FeatureClient
from cache_server.errors import BadRequest
from cache_server.flow import FlowControl
from cache_server.row_source import NO_SOURCES, SourceRequest
from cache_server.servicer import FeatureServicer
from cache_server.shard import Shard

_REPLIES: Final = 1 << 20
"""at once: nobody has to wait for a thread"""
_SEND_SECONDS: Final = 3600.0


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
    flow = FlowControl(_REPLIES, _SEND_SECONDS)
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
        self._fetch = [_stub(each.fetch_rows) for each in servicers]
        self._sample = [_stub(each.sample_neighbors) for each in servicers]


def _stub(method: Callable[..., Iterator[bytes]]) -> Any:
    def call(request: bytes, timeout: float) -> _Reply:
        return _Reply(method(request, _Context()))

    return call


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

    def set_code(self, code: object) -> None:
        """The text that follows says more."""

    def set_details(self, text: str) -> None:
        """A refusal.

        Raises
        ------
        BadRequest: always.
        """
        raise BadRequest(text)
