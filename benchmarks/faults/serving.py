"""A feature server in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def serving(
    partitioned: Path, index: int, port_file: Path
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, whose standard error is a pipe, and its address; killed afterwards."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "cache_server", str(partitioned)),
            *("--server", str(index), "--listen", "127.0.0.1:0"),
            *("--port-file", str(port_file), "--die-with-parent", str(os.getpid())),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not port_file.exists():
            if process.poll() is not None:
                raise RuntimeError(f"feature server {index} ended before it served")
            time.sleep(0.02)
        yield process, json.loads(port_file.read_text())["address"]
    finally:
        process.kill()
        process.communicate()
        port_file.unlink(missing_ok=True)
