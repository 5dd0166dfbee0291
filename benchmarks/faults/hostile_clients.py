"""Who else is at a feature server's port: other protocols, resets, floods, and readers that do not
read."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import grpc

from cache_server.wire import FETCH_ROWS

LOCAL: Final = [("grpc.use_local_subchannel_pool", 1)]
"""a channel with these options has a connection of its own"""
_RESET: Final = struct.pack("ii", 1, 0)
_STARTS: Final = (b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
_KEPT: Final = 50
_FLOOD: Final = 200
_READERS: Final = 8
_REREAD_SECONDS: Final = 5.0


class HostileClients:
    """What clients do to the server at an address, until they are told to end.

    Parameters
    ----------
    request: a good one for rows. large: one whose reply fills every buffer on the way.
    """

    def __init__(self, address: str, request: bytes, large: bytes, seed: int) -> None:
        self._address, self._request, self._large = address, request, large
        self._draw = random.Random(seed)
        self._ended = threading.Event()
        self._kept: list[socket.socket] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run all of them, each kind in a thread, while the context lasts."""
        acts = ((self._connect, 0.01), (self._flood, 2.0), (self._ignore, 0.0))
        threads = [threading.Thread(target=self._repeat, args=act) for act in acts]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()
            for client in self._kept:
                client.close()

    def _repeat(self, act: Callable[[], None], pause: float) -> None:
        while not self._ended.wait(pause):
            act()

    def _connect(self) -> None:
        """Speak another protocol, and leave in one of several ways, or stay."""
        host, _, port = self._address.rpartition(":")
        with suppress(OSError):
            client = socket.create_connection((host, int(port)), timeout=5.0)
            self._kept.append(client)
            noise = self._draw.randbytes(self._draw.randrange(200))
            client.sendall(self._draw.choice(_STARTS) + noise)
        if len(self._kept) > _KEPT:
            closed = self._kept.pop(self._draw.randrange(len(self._kept)))
            if self._draw.random() < 0.5:
                closed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            closed.close()

    def _flood(self) -> None:
        """Send many requests at once, and cancel them while they are answered."""
        with grpc.insecure_channel(self._address, LOCAL) as channel:
            stub = channel.unary_stream(FETCH_ROWS)
            calls = [stub(self._request, timeout=30.0) for _ in range(_FLOOD)]
            for call in calls[:: self._draw.choice((1, 2, 50))]:
                call.cancel()

    def _ignore(self) -> None:
        """Ask for many rows, and read none of them for a while."""
        channels = [grpc.insecure_channel(self._address, LOCAL) for _ in range(_READERS)]
        calls = [channel.unary_stream(FETCH_ROWS)(self._large) for channel in channels]
        self._ended.wait(_REREAD_SECONDS)
        for call in calls:
            call.cancel()
        for channel in channels:
            channel.close()
