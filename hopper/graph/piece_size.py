"""How much of a graph's arrays is worked on at a time, as much as memory may hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple

MOST_BYTES: Final = 16 << 20
LEAST_BYTES: Final = 256 << 10


class PieceSize(NamedTuple):
    """What work may hold at a time.

    Attributes
    ----------
    piece: bytes of a piece of an array, of which a few are held at a time.
    whole: bytes of arrays of a number a node or edge, together; what has more is worked on in
        ranges, or lies in a file.
    """

    piece: int = MOST_BYTES
    whole: int = 1 << 62


_UNLIMITED: Final = PieceSize()
_SIZE: Final = ContextVar("piece size", default=_UNLIMITED)


def piece_size() -> PieceSize:
    """What work may hold at a time; unless somebody said less, arrays as long as they are."""
    return _SIZE.get()


@contextmanager
def pieces_of(size: PieceSize) -> Iterator[None]:
    """Let work hold no more than this, a piece within the bounds above, for a while."""
    piece = max(LEAST_BYTES, min(MOST_BYTES, size.piece))
    token = _SIZE.set(PieceSize(piece, max(LEAST_BYTES, size.whole)))
    try:
        yield
    finally:
        _SIZE.reset(token)
