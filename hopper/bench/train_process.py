"""Runs training in another process, with a deadline. The process always ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopper.errors import ClusterError, DeadlineExceeded
from hopper.launch.processes import start_module, stop_processes
from hopper.train.results import SUMMARY_FILE

OUTPUT_FILE = "output.log"
_STOP_SECONDS = 15.0
_LOOK_SECONDS = 0.02
_QUOTED_LINES = 20


def train_in_process(
    what: str, config_file: Path, run_dir: Path, overrides: Sequence[str], limit: float
) -> dict[str, Any]:
    """Run ``hopper train`` in a new process, and return the run's summary.json.

    Output goes to a file in ``run_dir``. The process, its ranks and its servers have ended when
    this function returns or raises.

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
    log = run_dir / OUTPUT_FILE
    words = ["train", str(config_file), *run_dir_words(run_dir), *overrides]
    process = start_module("hopper.cli", words, os.environ, log=log, name="hopper train")
    try:
        deadline = time.monotonic() + limit
        while (code := process.poll()) is None:
            if time.monotonic() > deadline:
                raise DeadlineExceeded(what, "training", limit)
            time.sleep(_LOOK_SECONDS)
    finally:
        # Its ranks and servers end with it.
        stop_processes([process], _STOP_SECONDS)
    if code != 0:
        raise ClusterError(
            f"{what}: `hopper train` ended with exit code {code}: {_last_lines(log)} "
            f"(all of it: {run_dir})"
        )
    summary: dict[str, Any] = json.loads((run_dir / SUMMARY_FILE).read_text())
    return summary


def run_dir_words(run_dir: Path) -> list[str]:
    """Make the override that sets a run's folder."""
    # Quotes keep a path such as "12" a text.
    folder = json.dumps(str(run_dir.absolute()), ensure_ascii=False)
    return [f"--train.run_dir={folder}"]


def _last_lines(file: Path) -> str:
    """Return the last lines of a log."""
    lines = file.read_text(errors="replace").strip().splitlines()
    return "\n".join(lines[-_QUOTED_LINES:]) or "it said nothing"
