"""Starts a feature server in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def start_server(
    partitioned: Path, index: int, port_file: Path, *words: str, listen: str = "127.0.0.1:0"
) -> subprocess.Popen[str]:
    """Start a feature server, whose standard error is a pipe.

    Parameters
    ----------
    words: further ones of its command line.
    """
    port_file.unlink(missing_ok=True)
    return subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "cache_server", str(partitioned)),
            *("--server", str(index), "--listen", listen),
            *("--port-file", str(port_file), "--die-with-parent", str(os.getpid())),
            *words,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C must reach only the command that started the server.
        start_new_session=True,
    )


def await_address(process: subprocess.Popen[str], port_file: Path) -> str:
    """Wait until a server listens, and return its address. Raise RuntimeError if it ends before."""
    while not port_file.exists():
        if process.poll() is not None:
            raise RuntimeError(f"a feature server ended before it served: {process.args}")
        time.sleep(0.02)
    return str(json.loads(port_file.read_text())["address"])


@contextmanager
def serving(
    partitioned: Path, index: int, port_file: Path, *words: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server. Yield its process and address, and kill it afterwards."""
    process = start_server(partitioned, index, port_file, *words)
    try:
        yield process, await_address(process, port_file)
    finally:
        process.kill()
        process.communicate()
        port_file.unlink(missing_ok=True)
