"""Bounds on how much of a graph's arrays is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

MOST_BYTES: Final = 16 << 20
LEAST_BYTES: Final = 256 << 10


class PieceSize(NamedTuple):
    """Bounds on the bytes that may be in memory at a time.

    Attributes
    ----------
    piece: bytes of one piece of an array. A few pieces are in memory at a time.
    whole: bytes of all arrays with a number for every node or edge together. Larger arrays are
        worked on in ranges, or lie in a file.
    """

    piece: int = MOST_BYTES
    whole: int = 1 << 62


_UNLIMITED: Final = PieceSize()
_SIZE: Final = ContextVar("piece size", default=_UNLIMITED)


def piece_size() -> PieceSize:
    """Return the limits in force: those of :func:`limit_pieces`, or else none on ``whole``."""
    return _SIZE.get()


@contextmanager
def limit_pieces(size: PieceSize) -> Iterator[None]:
    """Set the limits within a ``with`` block; pieces stay between 256 KiB and 16 MiB."""
    piece = max(LEAST_BYTES, min(MOST_BYTES, size.piece))
    token = _SIZE.set(PieceSize(piece, max(LEAST_BYTES, size.whole)))
    try:
        yield
    finally:
        _SIZE.reset(token)
