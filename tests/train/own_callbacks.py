"""Callbacks for tests: one records its calls and may wait, one cuts its own rank's connections."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from hopper import Callback, Running


class Witness(Callback):
    """Writes every call to a file. After an epoch of a run that was not resumed it can wait until a
    file ``go-on`` is in the run's folder."""

    def __init__(self, *, run_dir: Path, wait_after: int = -1) -> None:
        self._file, self._go_on = run_dir / "witness.jsonl", run_dir / "go-on"
        self._wait_after = wait_after

    def _say(self, *values: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps([os.environ["RANK"], *values]) + "\n")

    def start(self, run: Running) -> None:
        self._say("start", run.config.train.engine, run.config.train.resume)

    def epoch(self, run: Running, record: Mapping[str, Any]) -> None:
        self._say("epoch", record["epoch"], record["val"])
        if record["epoch"] == self._wait_after and not run.config.train.resume:
            while not self._go_on.exists():
                time.sleep(0.02)

    def finish(self, run: Running) -> None:
        self._say("finish", run.summary["scores"]["test"][run.summary["metric"]])

    def close(self) -> None:
        self._say("close")


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
