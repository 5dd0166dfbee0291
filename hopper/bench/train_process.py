"""Runs training in another process, with a deadline. The process always ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopper.errors import ClusterError, DeadlineExceeded
from hopper.launch.processes import stop_processes
from hopper.train.results import SUMMARY_FILE

OUTPUT_FILE = "output.log"
ERRORS_FILE = "errors.log"
_STOP_SECONDS = 15.0
_QUOTED_LINES = 20


def train_in_process(
    what: str, config_file: Path, run_dir: Path, overrides: Sequence[str], limit: float
) -> dict[str, Any]:
    """Run ``hopper train`` in a new process, and return the run's summary.json.

    Output goes to files in ``run_dir``. The process, its ranks and its servers have ended when this
    function returns or raises.

    Parameters
    ----------
    what: names the run in errors, such as "hop, round 2".
    overrides: words ``--section.key value``, which follow those of the run directory.
    limit: seconds that the whole run may take.

    Raises
    ------
    ClusterError: the run failed or did not end in time. The error quotes the end of its output.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "hopper.cli", "train", str(config_file)]
    logs = run_dir / ERRORS_FILE, run_dir / OUTPUT_FILE
    with logs[0].open("wb") as errors, logs[1].open("wb") as output:
        process = subprocess.Popen(
            [*command, *run_dir_words(run_dir), *overrides],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            # In a new group, Ctrl-C reaches only this process, which then ends the run in order.
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise DeadlineExceeded(what, "training", limit) from None
        finally:
            # Its ranks and servers end with it.
            stop_processes([process], _STOP_SECONDS)
    if code != 0:
        raise ClusterError(
            f"{what}: `hopper train` ended with exit code {code}: {_last_lines(*logs)} "
            f"(all of it: {run_dir})"
        )
    summary: dict[str, Any] = json.loads((run_dir / SUMMARY_FILE).read_text())
    return summary


def run_dir_words(run_dir: Path) -> list[str]:
    """Make the override that sets a run's folder."""
    # Quotes keep a path such as "12" a text.
    folder = json.dumps(str(run_dir.absolute()), ensure_ascii=False)
    return [f"--train.run_dir={folder}"]


def _last_lines(*files: Path) -> str:
    """Return the last lines of the first log that is not empty."""
    for file in files:
        lines = file.read_text(errors="replace").strip().splitlines()
        if lines:
            return "\n".join(lines[-_QUOTED_LINES:])
    return "it said nothing"
