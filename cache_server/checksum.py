"""Checksums of files: XXH3 of the library xxhash.

They detect accidental changes by a disk, a network card or an interrupted copy. They are not
signatures: whoever can write a file can write its checksum too.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import xxhash


def file_checksum(path: Path) -> str:
    """Return the 128-bit XXH3 of a file in hexadecimal; raise OSError if it cannot be read."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()
