"""A proxy between clients and a server, which can alter, delay and cut their connections."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self

Alter = Callable[[bytes, int], bytes]
PIECE = 65536


class TcpProxy:
    """Passes bytes between clients and a server.

    Parameters
    ----------
    address: the server's "host:port".
    alter: called as (bytes, their offset in the stream); returns what the client gets instead. An
        OSError cuts the connection.
    pause: seconds after every ``piece`` bytes of what the client gets.
    """

    def __init__(
        self,
        address: str,
        alter: Alter = lambda data, _offset: data,
        pause: float = 0.0,
        piece: int = PIECE,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._target, self._alter, self._pause, self._piece = (host, int(port)), alter, pause, piece
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets: list[socket.socket] = [self._listening]
        self._pool = ThreadPoolExecutor(64)
        self._ended = threading.Event()

    def __enter__(self) -> Self:
        self._pool.submit(self._accept)
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        for connection in self._sockets:
            # Wakes threads that wait for the connection.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._pool.shutdown()

    def lead_to(self, address: str) -> None:
        """Cut all connections, and connect later clients to another server."""
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        for connection in self._sockets[1:]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [near, far]
            self._pool.submit(self._pump, near, far, lambda data, _offset: data, 0.0, PIECE)
            self._pool.submit(self._pump, far, near, self._alter, self._pause, self._piece)

    def _pump(
        self, source: socket.socket, sink: socket.socket, alter: Alter, pause: float, piece: int
    ) -> None:
        offset = 0
        try:
            while data := source.recv(piece):
                sink.sendall(alter(data, offset))
                offset += len(data)
                self._ended.wait(pause)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            for connection in (source, sink):
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
