"""Checksums of files, rows and divisions: XXH3 of the library xxhash.

They tell that bytes were altered by accident (a disk, a network card, a copy that broke off). They
are no signature: whoever can write a file can write its checksum too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import xxhash

_PIECE_BYTES: Final = 4 << 20


def file_checksum(path: Path) -> str:
    """Read a file whole, a piece at a time, and return its XXH3 of 128 bits, in hexadecimal.

    Raises
    ------
    OSError: the file cannot be read.
    """
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def rows_checksum(rows: bytes | bytearray | memoryview, seed: int) -> int:
    """The XXH3 of 64 bits of a chunk of rows; ``seed`` is an unsigned number of 64 bits."""
    return xxhash.xxh3_64_intdigest(rows, seed)
