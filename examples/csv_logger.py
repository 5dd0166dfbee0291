"""A user-defined logger: `train.loggers = ["csv_logger:CsvLogger"]`. See docs/howto/plug-ins.md."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopper import Callback, Running


class CsvLogger(Callback):
    """Writes a line for each epoch, for a spreadsheet. A resumed run appends to the same file.

    Parameters
    ----------
    run_dir: the run's folder.
    file: name of the file in the run's folder.
    """

    COLUMNS = ("epoch", "loss", "val", "seconds", "evaluation_seconds")

    def __init__(self, *, run_dir: Path, file: str = "epochs.csv") -> None:
        self._path = run_dir / file

    def start(self, run: Running) -> None:
        """Open the file; the first line of a new one names the columns."""
        is_new = not run.config.train.resume or not self._path.exists()
        self._file = self._path.open("w" if is_new else "a", newline="")
        self._lines = csv.writer(self._file)
        if is_new:
            self._lines.writerow([*self.COLUMNS, "megabytes_sent"])

    def epoch(self, run: Running, record: Mapping[str, Any]) -> None:
        """Write an epoch's line and flush it."""
        sent = sum(record["bytes"].values()) / 1e6
        self._lines.writerow([*(record[column] for column in self.COLUMNS), f"{sent:.3f}"])
        self._file.flush()

    def finish(self, run: Running) -> None:
        """Write the score of the best model."""
        scores, metric = run.summary["scores"]["test"], run.summary["metric"]
        self._lines.writerow(["test", "", scores.get(metric)])

    def close(self) -> None:
        """Close the file, if it was opened."""
        if hasattr(self, "_file"):
            self._file.close()
