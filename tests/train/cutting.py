"""A callback that cuts the connections of its own rank. This file has no tests."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from hopper.cluster import RECONNECTS
from hopper.train.callbacks import Callback, Running


class Cutting(Callback):
    """Cuts all connections of a rank within iterations, except the one to the store.

    Parameters
    ----------
    rank: the rank.
    moments: [epoch, iteration] of each cut, in order.
    """

    def __init__(self, *, run_dir: Path, rank: int, moments: Sequence[Sequence[int]]) -> None:
        self._rank = rank
        self._left = moments[int(os.environ.get(RECONNECTS, 0)) :]

    def gradient(self, run: Running) -> None:
        if run.rank == self._rank and self._left and self._left[0] == [run.epoch, run.iteration]:
            self._left = self._left[1:]
            for connection in psutil.Process().net_connections("tcp"):
                if connection.raddr and connection.raddr.port != int(os.environ["MASTER_PORT"]):
                    with socket.socket(fileno=os.dup(connection.fd)) as end, suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)


def cutting_callback(rank: int, moments: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Settings of a callback that cuts a rank's connections at some moments."""
    options = {"rank": rank, "moments": list(moments)}
    return {"callbacks": ["cutting:Cutting"], "callbacks_options": [options]}
