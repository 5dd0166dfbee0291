"""Defaults of a server's options. Its command line shows them without importing the server."""

from __future__ import annotations

from typing import Final

DEFAULT_THREADS: Final = 16
DEFAULT_DRAIN_SECONDS: Final = 10.0
DEFAULT_SEND_SECONDS: Final = 30.0
IDS_PER_REQUEST: Final = 1 << 20
"""Most ids in one request. A client asks a server how many it accepts."""
