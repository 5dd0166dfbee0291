"""Checksums of files and divisions: XXH3 of the library xxhash.

They detect accidental changes by a disk, a network card or an interrupted copy. They are not
signatures: whoever can write a file can write its checksum too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import xxhash

_PIECE_BYTES: Final = 4 << 20


def file_checksum(path: Path) -> str:
    """Return the 128-bit XXH3 of a file in hexadecimal; raise OSError if it cannot be read."""
    digest = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
