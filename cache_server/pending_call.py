"""What a client asks of one server, and how much of the answer has arrived."""

from __future__ import annotations

from abc import ABC, abstractmethod


class PendingCall(ABC):
    """The ids that one server is asked for, and how many of them it has answered.

    Answers arrive in the order of the ids, so one number tells which are missing. A retry asks for
    these only, and a large call becomes a sequence of requests.

    Of the ``size`` ids, ``done`` have been answered, and ``end`` will have been once the running
    request is complete.
    """

    def __init__(self, server: int, size: int) -> None:
        self.server = server
        self.size = size
        self.done = 0
        self.end = 0

    def end_of_request(self, start: int, limit: int) -> int:
        """Return the end of a request that begins at id ``start`` and has at most ``limit`` ids."""
        return min(start + limit, self.size)

    @abstractmethod
    def request(self, start: int, end: int) -> bytes:
        """Return the serialised request for ids ``start`` to ``end``."""

    @abstractmethod
    def take(self, message: bytes, seed: int) -> None:
        """Take the next chunk of the reply, of a checksum with ``seed``, and count it as done.

        Raises
        ------
        AlteredChunk: the chunk was altered on its way.
        ValueError: the chunk does not fit the call, or goes beyond ``end``.
        """
