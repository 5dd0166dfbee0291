"""A logger for tests, which records its calls and may wait. This file has no tests."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
