"""What stands between a client and its feature server: a link that fails, or no server at all.

And connections between processes, which are cut from outside.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import psutil

from tests.tcp_proxy import TcpProxy

_PIDFD_GETFD: Final = 438
"""The number of the system call (Linux 5.6), for which Python has no function."""


def cut_connections(processes: Sequence[psutil.Process]) -> int:
    """Cut all TCP connections between processes, as a reset or a firewall would. Return how many
    ends were cut."""
    ends = []
    for process in processes:
        # A process that has ended has no connections.
        with suppress(psutil.Error):
            for connection in process.net_connections("tcp"):
                if connection.raddr:
                    ends.append((connection.laddr, connection.raddr, process.pid, connection.fd))
    addresses = {local for local, *_ in ends}
    cut = [(pid, number) for _, remote, pid, number in ends if remote in addresses]
    for pid, number in cut:
        _shut_down(pid, number)
    return len(cut)


def _shut_down(pid: int, number: int) -> None:
    """Shut down another process's socket."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, number, 0)
        if copy >= 0:
            with socket.socket(fileno=copy) as end, suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        elif ctypes.get_errno() != errno.EBADF:
            # A process closes its socket once the other end has been cut.
            raise OSError(ctypes.get_errno(), f"pidfd_getfd of {pid}")
    finally:
        os.close(process)


class Link(TcpProxy):
    """A proxy before a server that disturbs the bytes of its replies, drawn by a seed."""

    def __init__(self, address: str, seed: int) -> None:
        super().__init__(address, lambda data, _offset: self._act(data))
        self._draw = random.Random(seed)
        self._act: Callable[[bytes], bytes] = bytes
        self._mended = threading.Event()

    def flip_a_bit(self) -> None:
        """Flip a bit of the bytes that pass next."""

        def flip(data: bytes) -> bytes:
            self.mend()
            changed = bytearray(data)
            changed[self._draw.randrange(len(changed))] ^= 1 << self._draw.randrange(8)
            return bytes(changed)

        self._act = flip

    def go_down(self) -> None:
        """Let nothing through until :meth:`mend`."""
        mended = self._mended = threading.Event()

        def hold(data: bytes) -> bytes:
            # A thread that waits for this link stops waiting when the link ends.
            while not (mended.is_set() or self._ended.wait(0.02)):
                continue
            return data

        self._act = hold

    def mend(self) -> None:
        """Let everything through. What was held back comes first."""
        self._act = bytes
        self._mended.set()

    def slow_down(self, bytes_per_second: float) -> None:
        """Limit the rate of what passes."""

        def wait(data: bytes) -> bytes:
            self._ended.wait(len(data) / bytes_per_second)
            return data

        self._act = wait


class NoServer:
    """Listens at ``address`` where a feature server should, and never answers, or with random
    bytes."""

    def __init__(self, speaks: bool) -> None:
        self._speaks = speaks
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._kept: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, name="no server", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        for sock in (self._listening, *self._kept):
            sock.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            self._kept.append(client)
            if self._speaks:
                with suppress(OSError):
                    client.sendall(os.urandom(512))
                    client.shutdown(socket.SHUT_RDWR)
