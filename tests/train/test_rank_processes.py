"""A rank that hangs after its work."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hopper.errors import DeadlineExceeded
from hopper.train.rank_processes import Machine, run_ranks, signals_as_exceptions

REAL_STARTS = True

LIMIT, SLACK = 2.0, 10.0
RANK = """
import os, signal
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_rank_that_stops_after_its_work_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rank has ended, so only the launcher waits for this one."""
    (tmp_path / "stopping.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start = time.monotonic()
    message = (
        rf"^rank 1 \(pid \d+\): ending after the other ranks did not finish within {LIMIT:g} s$"
    )
    with signals_as_exceptions(), pytest.raises(DeadlineExceeded, match=message):
        run_ranks(tmp_path / "config.json", 2, Machine(), "stopping", end_limit=LIMIT)
    assert time.monotonic() - start < LIMIT + SLACK
