"""The errors that numpy raises for a file that is no .npy file or has a damaged header."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from typing import Final

NPY_ERRORS: Final = (
    ValueError,
    TypeError,
    EOFError,
    SyntaxError,
    MemoryError,
    RecursionError,
    OverflowError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
