"""A callback that cuts the connections of its own rank. This file has no tests."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from hopper.train.callbacks import Callback, Running


class Cutting(Callback):
    """Cuts all connections of a rank once, except the one to the store.

    Parameters
    ----------
    rank: the rank.
    epoch, iteration: when.
    """

    def __init__(self, *, run_dir: Path, rank: int, epoch: int, iteration: int) -> None:
        self._moment = rank, epoch, iteration
        self._done = run_dir / "cut"

    def gradient(self, run: Running) -> None:
        is_due = (run.rank, run.epoch, run.iteration) == self._moment
        if is_due and not self._done.exists():
            self._done.touch()
            for connection in psutil.Process().net_connections("tcp"):
                if connection.raddr and connection.raddr.port != int(os.environ["MASTER_PORT"]):
                    with socket.socket(fileno=os.dup(connection.fd)) as end, suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)


def cutting_callback(rank: int, epoch: int, iteration: int) -> dict[str, Any]:
    """Settings of a callback that cuts a rank's connections once."""
    options = {"rank": rank, "epoch": epoch, "iteration": iteration}
    return {"callbacks": ["cutting:Cutting"], "callbacks_options": [options]}
